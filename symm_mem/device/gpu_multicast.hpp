// Multicast objects of a GPU's driver.
#pragma once

#include "symm_mem/device/gpu_device.hpp"
#include "symm_mem/device/multicast_object.hpp"

namespace symm {

class GpuMulticast final : public MulticastDevice {
 public:
  // `device` must outlive this and every object.
  explicit GpuMulticast(const GpuDevice& device) : device_(device) {}

  std::string problem() override;
  std::array<std::uint8_t, 16> uuid() override { return device_.identity().uuid; }
  std::size_t granularity(int devices, std::size_t bytes) override;
  std::unique_ptr<MulticastObject> create(int devices, std::size_t bytes, HandleKind kind) override;
  std::unique_ptr<MulticastObject> import_object(MemoryHandle handle, std::size_t bytes) override;

 private:
  void throw_if_problem();

  const GpuDevice& device_;
};

}  // namespace symm
