// Symmetric memory on a GPU and the kernels that use it: what a device library exports.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/gpu/launch/gpu_kernels.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_capture.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/device/gpu_chunks.hpp"
#include "symm_mem/device/gpu_device.hpp"
#include "symm_mem/device/gpu_handles.hpp"
#include "symm_mem/device/gpu_memory.hpp"
#include "symm_mem/device/gpu_multicast.hpp"

namespace symm {
namespace {

gpuMemAllocationProp allocation_properties(int device_index, HandleKinds kinds) {
  gpuMemAllocationProp properties{};
  properties.type = gpuMemAllocationType;
  properties.location.type = gpuMemLocationTypeDevice;
  properties.location.id = device_index;
  gpu_request_handles(properties, gpu_handle_types(kinds));
  return properties;
}

bool contains(const std::vector<gpuGraphNode_t>& nodes, gpuGraphNode_t node) {
  return std::ranges::find(nodes, node) != nodes.end();
}

// As GpuRuntime::drop_implied_dependencies(). Breadth first, from the nodes that are named.
void drop_implied(gpuStream_t stream) {
  constexpr std::size_t kMostNodes = 64;  // that are looked at; what is farther back stays named
  std::vector<gpuGraphNode_t> named;
  if (!gpu_capture_dependencies(stream, &named) || named.size() < 2) return;
  std::vector<gpuGraphNode_t> implied;
  std::vector<gpuGraphNode_t> seen = named;
  std::vector<gpuGraphNode_t> followed;
  for (std::size_t i = 0; i < std::min(seen.size(), kMostNodes); ++i) {
    if (implied.size() + 1 == named.size()) break;
    if (!gpu_node_dependencies(seen[i], &followed)) return;
    for (const gpuGraphNode_t node : followed) {
      if (contains(named, node) && !contains(implied, node)) implied.push_back(node);
      if (!contains(seen, node)) seen.push_back(node);
    }
  }
  const auto is_implied = [&](gpuGraphNode_t node) { return contains(implied, node); };
  if (std::erase_if(named, is_implied) > 0) gpu_set_capture_dependencies(stream, named);
}

class VmmRuntime final : public GpuRuntime {
 public:
  VmmRuntime(DeviceKind kind, int device_index)
      : kind_(kind), device_(kind, device_index), driver_(device_.driver()) {
    const GpuColdScope scope(device_);
    const gpuMemAllocationProp properties =
        allocation_properties(device_index, {.descriptor = device_.has_descriptors()});
    const std::string what = "setting up " + device_.label();
    driver_.check(driver_.mem_get_granularity(&granularity_, &properties, gpuMemGranularityMinimum),
                  what);
    driver_.check(driver_.stream_create(&stream_, gpuDriverStreamNonBlocking), what);
    multicast_ = make_gpu_multicast(device_);
  }

  DeviceKind kind() const override { return kind_; }
  std::size_t granularity() const override { return granularity_; }
  const GpuIdentity& identity() const override { return device_.identity(); }
  std::vector<GpuUuid> gpus_with_lines() override { return device_.gpus_with_lines(); }

  std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) override {
    if (bytes == 0) {
      throw Error(ErrorCode::kInvalidArgument, "allocate: bytes must be at least 1, got 0");
    }
    const GpuColdScope scope(device_);
    // A size near the end of the address space would wrap when rounded up.
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
    if (bytes > kMost) throw_allocation_failed(bytes, gpuDriverOutOfMemory);
    const std::size_t rounded = align_up(bytes, granularity_);
    std::shared_ptr<GpuMemory> memory = create(rounded);
    std::unique_ptr<GpuMapping> mapping = map_anywhere(*memory);
    clear(mapping->base(), rounded);
    memory->keep(std::move(mapping));
    return memory;
  }

  HandleKinds handle_kinds(const PhysicalMemory& memory) override {
    return static_cast<const GpuMemory&>(memory).kinds();
  }

  MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) override {
    return export_gpu_handle(device_, static_cast<const GpuMemory&>(memory).handle(), kind,
                             text_of(memory.bytes(), " bytes of memory"));
  }

  // The driver does not report the size of what it imports; mapping fails where it is less.
  std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) override {
    if (bytes == 0 || bytes % granularity_ != 0) {
      throw Error(ErrorCode::kSecurity,
                  "refused a peer's memory handle: expected a size that is a positive multiple of ",
                  granularity_, " bytes, got ", bytes);
    }
    return std::make_shared<GpuMemory>(device_, import_gpu_handle(device_, handle), bytes,
                                       HandleKinds{}, "a peer's memory");
  }

  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() / 2) {
      throw Error(ErrorCode::kSystem, "reserving ", bytes, " bytes of addresses on ",
                  device_.label(), " failed: the size is out of range");
    }
    return std::make_shared<GpuRange>(device_, align_up(bytes, granularity_), granularity_);
  }

  std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) override {
    auto& held = static_cast<GpuMemory&>(*memory);
    std::unique_ptr<GpuMapping> mapping = held.take_kept();
    if (!mapping) mapping = map_anywhere(held);
    mapping->hold(std::move(memory));
    return mapping;
  }

  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    check_place(*memory, *range, offset);
    auto mapping = static_cast<const GpuMemory&>(*memory).map_at(std::move(range), offset);
    mapping->hold(std::move(memory));
    return mapping;
  }

  void clear(std::byte* data, std::size_t bytes) override {
    const GpuColdScope scope(device_);
    const std::string what = text_of("clearing ", bytes, " bytes of memory on ", device_.label());
    driver_.check(driver_.memset_async(gpu_device_pointer(data), 0, bytes, stream_), what);
    driver_.check(driver_.stream_synchronize(stream_), what);
  }

  std::optional<ChunkedMemory> find_chunks(const std::byte* data, std::size_t bytes) override {
    return find_gpu_chunks(device_, granularity_, data, bytes);
  }

  bool is_same(const PhysicalMemory& one, const PhysicalMemory& other) override {
    return static_cast<const GpuMemory&>(one).handle() ==
           static_cast<const GpuMemory&>(other).handle();
  }

  MulticastDevice* multicast() override { return multicast_.get(); }

  StreamHandle make_stream(bool high_priority) override {
    const GpuColdScope scope(device_);
    int least = 0;
    int greatest = 0;
    gpuStream_t stream = nullptr;
    check_gpu(gpuDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    check_gpu(gpuStreamCreateNonBlocking(&stream, high_priority ? greatest : 0), "making a stream");
    return stream;
  }

  std::uint64_t capture_id(StreamHandle stream) override {
    const GpuScope scope(device_);
    gpuStreamCaptureStatus status = gpuStreamCaptureStatusNone;
    unsigned long long id = 0;
    const gpuError_t error =
        gpuStreamGetCaptureInfo(static_cast<gpuStream_t>(stream), &status, &id);
    if (error != gpuSuccess) {
      static_cast<void>(gpuGetLastError());  // or a later check would find it
      throw Error(ErrorCode::kSystem,
                  error == gpuErrorStreamCaptureImplicit
                      ? "the legacy default stream of " + device_.label() +
                            " cannot be used while another stream is captured into a graph"
                      : "asking whether a stream of " + device_.label() +
                            " is captured failed: " + gpuGetErrorString(error));
    }
    if (status == gpuStreamCaptureStatusNone) return 0;
    if (status != gpuStreamCaptureStatusActive) {
      throw Error(ErrorCode::kSystem, "the capture of a stream of ", device_.label(),
                  " into a graph has been invalidated by an earlier call");
    }
    return id;
  }

  void drop_implied_dependencies(StreamHandle stream) noexcept override {
    if constexpr (!kGpuTellsDependencies) return;
    try {
      const GpuScope scope(device_);
      drop_implied(static_cast<gpuStream_t>(stream));
    } catch (const std::exception&) {
      // All of the edges stay, which is as right.
    }
  }

  int relax_capture_mode() noexcept override {
    return exchange_capture_mode(gpuThreadCaptureRelaxed);
  }
  void restore_capture_mode(int before) noexcept override {
    exchange_capture_mode(static_cast<gpuThreadCaptureMode>(before));
  }

  void synchronize() override {
    const GpuColdScope scope(device_);
    driver_.check(driver_.context_synchronize(), "waiting for " + device_.label());
  }

  bool is_in_error() noexcept override {
    try {
      const GpuColdScope scope(device_);
      const gpuError_t status = gpuStreamQuery(reinterpret_cast<gpuStream_t>(stream_));
      if (status == gpuSuccess) return false;
      static_cast<void>(gpuGetLastError());
      return status != gpuErrorNotReady;
    } catch (const Error&) {
      return true;
    }
  }

  std::unique_ptr<GroupKernels> make_group_kernels(const GroupKernelsConfig& config) override {
    const GpuColdScope scope(device_);
    return make_gpu_group_kernels(config, device_.identity().index);
  }

  std::unique_ptr<SignalKernels> make_signal_kernels(const SignalKernelsConfig& config) override {
    const std::shared_ptr<Mapping> memory = map(allocate(sizeof(SignalState)));
    const GpuColdScope scope(device_);
    auto* const state = reinterpret_cast<SignalState*>(memory->base());
    return make_gpu_signal_kernels(config, device_.identity().index, {memory, state});
  }

 private:
  int exchange_capture_mode(gpuThreadCaptureMode mode) const noexcept {
    if (device_.usable()) static_cast<void>(driver_.thread_exchange_capture_mode(&mode));
    return static_cast<int>(mode);
  }

  std::unique_ptr<GpuMapping> map_anywhere(const GpuMemory& memory) const {
    return memory.map_at(std::make_shared<GpuRange>(device_, memory.bytes(), granularity_), 0);
  }

  // The kinds of handle that new memory is to have.
  HandleKinds wanted_kinds(HandlePreference preference) const {
    HandleKinds kinds{.descriptor = device_.has_descriptors(),
                      .fabric = device_.has_fabric_handles()};
    if (preference == HandlePreference::kPosix) kinds.fabric = false;
    if (preference == HandlePreference::kFabric && !kinds.fabric) {
      throw Error(ErrorCode::kUnsupported, "SYMM_HANDLE_TYPE=fabric: ", device_.label(),
                  " has no fabric handles");
    }
    if (!kinds.descriptor && !kinds.fabric) {
      throw Error(ErrorCode::kUnsupported, "SYMM_HANDLE_TYPE=posix: ", device_.label(),
                  " cannot share memory by file descriptors");
    }
    if (preference == HandlePreference::kAuto && kinds.descriptor && fabric_refused_) {
      kinds.fabric = false;
    }
    return kinds;
  }

  // Without the service that hands fabric handles out the driver refuses to make memory with them;
  // from then on descriptors alone are asked for.
  std::shared_ptr<GpuMemory> create(std::size_t bytes) {
    const HandlePreference preference = handle_preference();
    HandleKinds kinds = wanted_kinds(preference);
    gpuMemHandle_t handle{};
    const auto attempt = [&] {
      const auto properties = allocation_properties(device_.identity().index, kinds);
      return driver_.mem_create(&handle, bytes, &properties, 0);
    };
    gpuResult_t result = attempt();
    const bool refused =
        kinds.fabric && result != gpuDriverSuccess && result != gpuDriverOutOfMemory;
    if (refused && (preference == HandlePreference::kFabric || !kinds.descriptor)) {
      throw Error(ErrorCode::kUnsupported, device_.label(),
                  " cannot make memory with fabric handles, which ",
                  (kinds.descriptor ? "SYMM_HANDLE_TYPE=fabric asks for"
                                    : "are all that it could be shared by"),
                  ": ", driver_.describe(result),
                  "; see that this process may use a channel of the fabric's service");
    }
    if (refused) {
      kinds.fabric = false;
      result = attempt();
      if (result == gpuDriverSuccess) fabric_refused_ = true;
    }
    if (result != gpuDriverSuccess) throw_allocation_failed(bytes, result);
    return std::make_shared<GpuMemory>(device_, handle, bytes, kinds, "memory");
  }

  [[noreturn]] void throw_allocation_failed(std::size_t bytes, gpuResult_t result) const {
    std::size_t free = 0;
    std::size_t total = 0;
    std::string room;
    if (driver_.mem_get_info(&free, &total) == gpuDriverSuccess) {
      room = text_of("; ", free, " of its ", total, " bytes are free");
    }
    throw Error(ErrorCode::kSystem, "allocating ", bytes, " bytes of memory on ", device_.label(),
                " failed: ", driver_.describe(result), room);
  }

  DeviceKind kind_;
  GpuDevice device_;
  const GpuDriver& driver_;
  std::size_t granularity_ = 0;
  gpuDriverStream_t stream_ = nullptr;  // waits for no other stream
  std::atomic<bool> fabric_refused_{false};
  std::unique_ptr<MulticastDevice> multicast_;
};

// For whoever looks into the file.
[[gnu::used]] const char* const kHostCalls = kGpuHostCalls;

constexpr DeviceKind kKind = DeviceKind::SYMM_GPU_KIND;

GpuRuntime& runtime_of(int device_index) {
  struct Runtimes {
    std::mutex mutex;
    std::map<int, std::unique_ptr<GpuRuntime>> by_index;
  };
  // Never destroyed: a tensor may outlive every static of the program.
  static Runtimes* const runtimes = new Runtimes;
  const std::lock_guard<std::mutex> lock(runtimes->mutex);
  std::unique_ptr<GpuRuntime>& runtime = runtimes->by_index[device_index];
  if (!runtime) runtime = std::make_unique<VmmRuntime>(kKind, device_index);
  return *runtime;
}

constexpr DeviceLibrary kLibrary{kDeviceLibraryVersion, kKind, &runtime_of};

}  // namespace
}  // namespace symm

extern "C" __attribute__((visibility("default"))) const symm::DeviceLibrary* symm_device_library() {
  return &symm::kLibrary;
}
