#include "symm_mem/device/gpu_runtime.hpp"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/gpu/gpu_api.hpp"
#include "kernels/gpu/gpu_group_kernels.hpp"
#include "symm_mem/device/gpu_device.hpp"
#include "symm_mem/device/gpu_memory.hpp"
#include "symm_mem/system_error.hpp"

namespace symm {
namespace {

gpuMemAllocationProp allocation_properties(int device_index, bool fabric) {
  gpuMemAllocationProp properties{};
  properties.type = gpuMemAllocationTypePinned;
  properties.location.type = gpuMemLocationTypeDevice;
  properties.location.id = device_index;
  const int types =
      static_cast<int>(gpuMemHandlePosix) | (fabric ? static_cast<int>(gpuMemHandleFabric) : 0);
  properties.requestedHandleTypes = static_cast<decltype(properties.requestedHandleTypes)>(types);
  return properties;
}

[[noreturn]] void refuse_import(ErrorCode code, const std::string& why) {
  throw Error(code, "refused a peer's memory descriptor: " + why);
}

class VmmRuntime final : public GpuRuntime {
 public:
  VmmRuntime(DeviceKind kind, int device_index)
      : kind_(kind), device_(kind, device_index), driver_(device_.driver()) {
    const GpuColdScope scope(device_);
    const gpuMemAllocationProp properties = allocation_properties(device_index, false);
    const std::string what = "setting up " + device_.label();
    driver_.check(driver_.mem_get_granularity(&granularity_, &properties, gpuMemGranularityMinimum),
                  what);
    driver_.check(driver_.stream_create(&stream_, gpuDriverStreamNonBlocking), what);
    fabric_ = device_.has_fabric_handles();
  }

  DeviceKind kind() const override { return kind_; }
  std::size_t granularity() const override { return granularity_; }
  const GpuIdentity& identity() const override { return device_.identity(); }

  std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) override {
    if (bytes == 0) {
      throw Error(ErrorCode::kInvalidArgument, "allocate: bytes must be at least 1, got 0");
    }
    const GpuColdScope scope(device_);
    // A size near the end of the address space would wrap when rounded up.
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
    if (bytes > kMost) throw_allocation_failed(bytes, gpuDriverOutOfMemory);
    const std::size_t rounded = align_up(bytes, granularity_);
    auto memory = std::make_shared<GpuMemory>(device_, create(rounded), rounded, "memory");
    std::unique_ptr<GpuPlacement> placement = place(*memory);
    const std::string what =
        "clearing " + std::to_string(rounded) + " bytes of memory on " + device_.label();
    driver_.check(driver_.memset_async(gpu_device_pointer(placement->base()), 0, rounded, stream_),
                  what);
    driver_.check(driver_.stream_synchronize(stream_), what);
    memory->keep(std::move(placement));
    return memory;
  }

  FileDescriptor export_memory(const PhysicalMemory& memory) override {
    const GpuColdScope scope(device_);
    const std::string what =
        "exporting " + std::to_string(memory.bytes()) + " bytes of memory of " + device_.label();
    int fd = -1;
    driver_.check(driver_.mem_export(&fd, static_cast<const GpuMemory&>(memory).handle(),
                                     gpuMemHandlePosix, 0),
                  what);
    FileDescriptor exported(fd);
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw_system_error(what, errno);
    return exported;
  }

  // The driver does not tell the size of what it imports; mapping fails where it is less.
  std::shared_ptr<PhysicalMemory> import_memory(FileDescriptor descriptor,
                                                std::size_t bytes) override {
    if (bytes == 0 || bytes % granularity_ != 0) {
      refuse_import(ErrorCode::kSecurity, "expected a size that is a positive multiple of " +
                                              std::to_string(granularity_) + " bytes, got " +
                                              std::to_string(bytes));
    }
    if (!descriptor.valid()) {
      refuse_import(ErrorCode::kSecurity, "it is not an open descriptor");
    }
    const GpuColdScope scope(device_);
    gpuMemHandle_t handle{};
    const auto number = static_cast<std::uintptr_t>(descriptor.get());
    const gpuResult_t result =
        driver_.mem_import(&handle, reinterpret_cast<void*>(number), gpuMemHandlePosix);
    if (result != gpuDriverSuccess) {
      const bool forged = result == gpuDriverInvalidValue || result == gpuDriverInvalidHandle;
      refuse_import(forged ? ErrorCode::kSecurity : ErrorCode::kSystem,
                    device_.label() + " cannot import it: " + driver_.describe(result));
    }
    return std::make_shared<GpuMemory>(device_, handle, bytes, "a peer's memory");
  }

  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() / 2) {
      throw Error(ErrorCode::kSystem, "reserving " + std::to_string(bytes) +
                                          " bytes of addresses on " + device_.label() +
                                          " failed: the size is out of range");
    }
    return std::make_shared<GpuRange>(device_, align_up(bytes, granularity_), granularity_);
  }

  std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) override {
    auto& held = static_cast<GpuMemory&>(*memory);
    std::unique_ptr<GpuPlacement> placement = held.take_kept();
    if (!placement) placement = place(held);
    return std::make_shared<GpuMapping>(std::move(memory), std::move(placement));
  }

  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    const std::size_t room = range->bytes();
    if (offset % granularity_ != 0 || offset > room || memory->bytes() > room - offset) {
      throw Error(ErrorCode::kInvalidArgument,
                  "map_at: offset " + std::to_string(offset) + " must be a multiple of " +
                      std::to_string(granularity_) + " that leaves room for " +
                      std::to_string(memory->bytes()) + " bytes in a range of " +
                      std::to_string(room));
    }
    auto placement = static_cast<const GpuMemory&>(*memory).place(std::move(range), offset);
    return std::make_shared<GpuMapping>(std::move(memory), std::move(placement));
  }

  bool is_capturing(StreamHandle stream) override { return capture_of(stream).active; }
  std::uint64_t capture_id(StreamHandle stream) override { return capture_of(stream).id; }

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

  std::unique_ptr<GroupKernels> make_group_kernels(const GroupKernelsConfig& config) override {
    const GpuColdScope scope(device_);
    return make_gpu_group_kernels(config, device_.identity().index);
  }

 private:
  struct Capture {
    bool active = false;
    std::uint64_t id = 0;
  };

  int exchange_capture_mode(gpuThreadCaptureMode mode) const noexcept {
    if (device_.usable()) static_cast<void>(driver_.thread_exchange_capture_mode(&mode));
    return static_cast<int>(mode);
  }

  // In a place of its own.
  std::unique_ptr<GpuPlacement> place(const GpuMemory& memory) const {
    return memory.place(std::make_shared<GpuRange>(device_, memory.bytes(), granularity_), 0);
  }

  // Fabric handles are asked for where the device offers them; without the service that hands them
  // out the driver refuses, and from then on descriptors alone are asked for.
  gpuMemHandle_t create(std::size_t bytes) {
    gpuMemHandle_t handle{};
    const auto attempt = [&](bool fabric) {
      const auto properties = allocation_properties(device_.identity().index, fabric);
      return driver_.mem_create(&handle, bytes, &properties, 0);
    };
    const bool fabric = fabric_;
    gpuResult_t result = attempt(fabric);
    if (result != gpuDriverSuccess && result != gpuDriverOutOfMemory && fabric) {
      result = attempt(false);
      if (result == gpuDriverSuccess) fabric_ = false;
    }
    if (result != gpuDriverSuccess) throw_allocation_failed(bytes, result);
    return handle;
  }

  [[noreturn]] void throw_allocation_failed(std::size_t bytes, gpuResult_t result) const {
    std::size_t free = 0;
    std::size_t total = 0;
    std::string room;
    if (driver_.mem_get_info(&free, &total) == gpuDriverSuccess) {
      room = "; " + std::to_string(free) + " of its " + std::to_string(total) + " bytes are free";
    }
    throw Error(ErrorCode::kSystem, "allocating " + std::to_string(bytes) + " bytes of memory on " +
                                        device_.label() + " failed: " + driver_.describe(result) +
                                        room);
  }

  Capture capture_of(StreamHandle stream) const {
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
    if (status == gpuStreamCaptureStatusNone) return {};
    if (status != gpuStreamCaptureStatusActive) {
      throw Error(ErrorCode::kSystem, "the capture of a stream of " + device_.label() +
                                          " into a graph has been invalidated by an earlier call");
    }
    return {true, id};
  }

  DeviceKind kind_;
  GpuDevice device_;
  const GpuDriver& driver_;
  std::size_t granularity_ = 0;
  gpuDriverStream_t stream_ = nullptr;  // waits for no other stream
  std::atomic<bool> fabric_{false};
};

}  // namespace

std::unique_ptr<GpuRuntime> make_gpu_runtime(DeviceKind kind, int device_index) {
  return std::make_unique<VmmRuntime>(kind, device_index);
}

}  // namespace symm
