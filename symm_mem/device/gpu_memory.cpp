#include "symm_mem/device/gpu_memory.hpp"

namespace symm {

GpuRange::GpuRange(const GpuDevice& device, std::size_t bytes, std::size_t alignment)
    : device_(device), bytes_(bytes) {
  const GpuColdScope scope(device);
  gpuDevicePointer_t base{};
  device.driver().check(
      device.driver().mem_address_reserve(&base, bytes, alignment, gpuDevicePointer_t{}, 0),
      text_of("reserving ", bytes, " bytes of addresses on ", device.label()));
  base_ = gpu_host_pointer(base);
}

GpuRange::~GpuRange() {
  release_quietly(device_, [this](const GpuDriver& driver) {
    static_cast<void>(driver.mem_address_free(gpu_device_pointer(base_), bytes_));
  });
}

GpuMapping::GpuMapping(const GpuDevice& device, gpuMemHandle_t memory, std::size_t bytes,
                       std::shared_ptr<AddressRange> range, std::size_t offset,
                       const std::string& whose)
    : device_(device), range_(std::move(range)), base_(range_->base() + offset), bytes_(bytes) {
  const GpuColdScope scope(device);
  const GpuDriver& driver = device.driver();
  const std::string action =
      text_of("mapping ", bytes, " bytes of ", whose, " on ", device.label());
  driver.check(driver.mem_map(gpu_device_pointer(base_), bytes, 0, memory, 0), action);
  gpuMemAccessDesc access{};
  access.location.type = gpuMemLocationTypeDevice;
  access.location.id = device.identity().index;
  access.flags = gpuMemAccessReadWrite;
  const gpuResult_t granted = driver.mem_set_access(gpu_device_pointer(base_), bytes, &access, 1);
  if (granted == gpuDriverSuccess) return;
  unmap();
  driver.check(granted, action + ": this GPU gets no access to it;");
}

GpuMapping::~GpuMapping() {
  release_quietly(device_, [this](const GpuDriver&) { unmap(); });
}

void GpuMapping::unmap() noexcept {
  static_cast<void>(device_.driver().mem_unmap(gpu_device_pointer(base_), bytes_));
}

GpuMemory::~GpuMemory() {
  kept_.reset();
  release_quietly(
      device_, [this](const GpuDriver& driver) { static_cast<void>(driver.mem_release(handle_)); });
}

std::unique_ptr<GpuMapping> GpuMemory::map_at(std::shared_ptr<AddressRange> range,
                                              std::size_t offset) const {
  return std::make_unique<GpuMapping>(device_, handle_, bytes_, std::move(range), offset, whose_);
}

void GpuMemory::keep(std::unique_ptr<GpuMapping> mapping) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_ = std::move(mapping);
}

std::unique_ptr<GpuMapping> GpuMemory::take_kept() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(kept_, nullptr);
}

}  // namespace symm
