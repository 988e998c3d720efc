#include "symm_mem/device/gpu_chunks.hpp"

#include <memory>
#include <utility>

#include "symm_mem/device/gpu_handles.hpp"
#include "symm_mem/device/gpu_memory.hpp"

namespace symm {
namespace {

struct Chunk {
  std::shared_ptr<GpuMemory> memory;
  const std::byte* base = nullptr;
};

// The handle behind an address, held for as long as this lives.
class RetainedHandle {
 public:
  RetainedHandle(const GpuDevice& device, const std::byte* at) : driver_(device.driver()) {
    // The driver's type for an address; it is not read.
    void* const address = const_cast<std::byte*>(at);
    held_ = driver_.mem_retain_handle(&handle_, address) == gpuDriverSuccess;
  }
  ~RetainedHandle() {
    if (held_) static_cast<void>(driver_.mem_release(handle_));
  }
  RetainedHandle(const RetainedHandle&) = delete;
  RetainedHandle& operator=(const RetainedHandle&) = delete;

  bool held() const { return held_; }
  gpuMemHandle_t get() const { return handle_; }
  gpuMemHandle_t give_away() {
    held_ = false;
    return handle_;
  }

 private:
  const GpuDriver& driver_;
  gpuMemHandle_t handle_{};
  bool held_ = false;
};

// By what the memory of `handle` can be exported; by nothing where it is not this device's, or not
// of the type that symmetric memory needs.
HandleKinds exportable_kinds(const GpuDevice& device, gpuMemHandle_t handle) {
  gpuMemAllocationProp properties{};
  if (device.driver().mem_get_properties(&properties, handle) != gpuDriverSuccess) return {};
  if (properties.type != gpuMemAllocationType ||
      properties.location.type != gpuMemLocationTypeDevice ||
      properties.location.id != device.identity().index) {
    return {};
  }
  return handle_kinds_of(gpu_requested_handles(properties));
}

// The chunk in which `at` lies; its memory is null where there is none that can be shared.
Chunk chunk_at(const GpuDevice& device, std::size_t granularity, const std::byte* at) {
  RetainedHandle handle(device, at);
  if (!handle.held()) return {};
  gpuDevicePointer_t start{};
  std::size_t bytes = 0;
  const gpuResult_t found =
      device.driver().mem_get_address_range(&start, &bytes, gpu_device_pointer(at));
  if (found != gpuDriverSuccess) return {};
  const std::byte* const base = gpu_host_pointer(start);
  if (bytes == 0 || bytes % granularity != 0 || at < base ||
      static_cast<std::size_t>(at - base) >= bytes) {
    return {};
  }
  for (const std::byte* const end : {base, base + (bytes - 1)}) {
    const RetainedHandle same(device, end);
    if (!same.held() || same.get() != handle.get()) return {};
  }
  const HandleKinds kinds = exportable_kinds(device, handle.get());
  if (!kinds.descriptor && !kinds.fabric) return {};
  auto memory =
      std::make_shared<GpuMemory>(device, handle.get(), bytes, kinds, "memory of another library");
  static_cast<void>(handle.give_away());
  return {std::move(memory), base};
}

}  // namespace

std::optional<ChunkedMemory> find_gpu_chunks(const GpuDevice& device, std::size_t granularity,
                                             const std::byte* data, std::size_t bytes) {
  const GpuColdScope scope(device);
  ChunkedMemory found;
  const std::byte* at = data;
  for (std::size_t left = bytes; left > 0;) {
    Chunk chunk = chunk_at(device, granularity, at);
    if (!chunk.memory) return std::nullopt;
    if (found.chunks.empty()) {
      found.start = static_cast<std::size_t>(at - chunk.base);
    } else if (chunk.base != at) {
      return std::nullopt;
    }
    const std::byte* const end = chunk.base + chunk.memory->bytes();
    found.chunks.push_back(std::move(chunk.memory));
    const auto covered = static_cast<std::size_t>(end - at);
    if (covered >= left) break;
    left -= covered;
    at = end;
  }
  return found;
}

}  // namespace symm
