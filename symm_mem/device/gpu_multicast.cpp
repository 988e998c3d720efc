#include "symm_mem/device/gpu_multicast.hpp"

#include <bit>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/plan/multimem.hpp"
#include "symm_mem/device/gpu_handles.hpp"
#include "symm_mem/device/gpu_memory.hpp"
#include "symm_mem/device/multicast.hpp"

namespace symm {

namespace {

gpuMulticastObjectProp properties_of(int devices, std::size_t bytes, HandleKinds kinds) {
  gpuMulticastObjectProp properties{};
  properties.numDevices = static_cast<unsigned>(devices);
  properties.size = bytes;
  properties.handleTypes = static_cast<decltype(properties.handleTypes)>(gpu_handle_types(kinds));
  return properties;
}

class GpuMulticastObject final : public MulticastObject {
 public:
  // Takes `handle` over.
  GpuMulticastObject(const GpuDevice& device, gpuMemHandle_t handle, std::size_t bytes)
      : device_(device), handle_(handle), bytes_(bytes) {}

  ~GpuMulticastObject() override {
    mapping_.reset();
    release_quietly(device_, [this](const GpuDriver& driver) {
      if (memory_) static_cast<void>(driver.multicast_unbind(handle_, device_.handle(), 0, bytes_));
      static_cast<void>(driver.mem_release(handle_));
    });
  }

  MemoryHandle export_handle(HandleKind kind) override {
    return export_gpu_handle(device_, handle_, kind, "a multicast object");
  }

  void add_device() override {
    const GpuColdScope scope(device_);
    const GpuDriver& driver = device_.driver();
    driver.check(driver.multicast_add_device(handle_, device_.handle()),
                 "adding " + device_.label() + " to a multicast object");
  }

  void bind(std::shared_ptr<PhysicalMemory> memory) override {
    const GpuColdScope scope(device_);
    const GpuDriver& driver = device_.driver();
    const gpuMemHandle_t bound = static_cast<const GpuMemory&>(*memory).handle();
    driver.check(driver.multicast_bind_memory(handle_, 0, bound, 0, memory->bytes(), 0),
                 text_of("binding ", memory->bytes(), " bytes of ", device_.label(),
                         " to a multicast object"));
    memory_ = std::move(memory);
  }

  std::byte* map() override {
    // The addresses must be aligned to the object's chunks, of which its size is a multiple.
    const std::size_t alignment = std::size_t{1} << std::countr_zero(bytes_);
    mapping_ = std::make_unique<GpuMapping>(device_, handle_, bytes_,
                                            std::make_shared<GpuRange>(device_, bytes_, alignment),
                                            0, "a multicast object");
    return mapping_->base();
  }

 private:
  const GpuDevice& device_;
  const gpuMemHandle_t handle_;
  const std::size_t bytes_;
  std::shared_ptr<PhysicalMemory> memory_;  // bound
  std::unique_ptr<GpuMapping> mapping_;
};

class GpuMulticast final : public MulticastDevice {
 public:
  explicit GpuMulticast(const GpuDevice& device) : device_(device) {}

  std::array<std::uint8_t, 16> uuid() override { return device_.identity().uuid; }

  // Tests the switches here as well as in the callers, so that no caller can pass them by.
  std::string problem() override {
    if (const std::string switched_off = multicast_disabled_by(); !switched_off.empty()) {
      return switched_off + "=1";
    }
    const GpuColdScope scope(device_);
    if (device_.attribute(gpuAttributeMulticast) == 0) return device_.label() + " has no multicast";
    // The addresses are of no use without the instructions, and a call that uses them must be
    // possible on every rank or on none.
    const int architecture = device_.identity().architecture;
    if (architecture < kMultimemArchitecture) {
      return text_of(device_.label(), " has compute capability ", architecture / 10, ".",
                     architecture % 10, ", and multimem instructions need 9.0");
    }
    return "";
  }

  std::size_t granularity(int devices, std::size_t bytes) override {
    throw_if_problem();
    const GpuColdScope scope(device_);
    const GpuDriver& driver = device_.driver();
    const gpuMulticastObjectProp properties = properties_of(devices, bytes, {.descriptor = true});
    std::size_t granularity = 0;
    driver.check(
        driver.multicast_get_granularity(&granularity, &properties, gpuMulticastGranularityMinimum),
        "asking " + device_.label() + " for the granularity of multicast objects");
    return granularity;
  }

  std::unique_ptr<MulticastObject> create(int devices, std::size_t bytes,
                                          HandleKind kind) override {
    throw_if_problem();
    const GpuColdScope scope(device_);
    const GpuDriver& driver = device_.driver();
    const bool fabric = kind == HandleKind::kFabric;
    const gpuMulticastObjectProp properties =
        properties_of(devices, bytes, {.descriptor = !fabric, .fabric = fabric});
    gpuMemHandle_t handle{};
    driver.check(driver.multicast_create(&handle, &properties),
                 text_of("creating a multicast object of ", bytes, " bytes for ", devices,
                         " GPUs on ", device_.label()));
    return std::make_unique<GpuMulticastObject>(device_, handle, bytes);
  }

  std::unique_ptr<MulticastObject> import_object(MemoryHandle handle, std::size_t bytes) override {
    throw_if_problem();
    return std::make_unique<GpuMulticastObject>(device_, import_gpu_handle(device_, handle), bytes);
  }

 private:
  void throw_if_problem() {
    const std::string why = problem();
    if (!why.empty()) throw Error(ErrorCode::kUnsupported, "multicast: ", why);
  }

  const GpuDevice& device_;
};

}  // namespace

std::unique_ptr<MulticastDevice> make_gpu_multicast(const GpuDevice& device) {
  return std::make_unique<GpuMulticast>(device);
}

}  // namespace symm
