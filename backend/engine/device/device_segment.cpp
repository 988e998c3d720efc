#include "backend/engine/device/device_segment.hpp"

#include <new>

#include "symm_mem/bootstrap/mesh_round.hpp"

namespace symm {

DeviceSegment::DeviceSegment(GpuRuntime& runtime, std::size_t bytes)
    : runtime_(runtime),
      bytes_(bytes),
      memory_(runtime.allocate(bytes)),
      mapping_(runtime.map(memory_)),
      range_(mapping_->range()) {}

void DeviceSegment::save(GroupKernels& kernels) {
  copy_.reset(new (std::nothrow) std::byte[bytes_]);
  if (!copy_) {
    throw Error(ErrorCode::kSystem, "allocating ", bytes_,
                " bytes of host memory for the contents of the group's device memory failed");
  }
  kernels.copy_to_host(copy_.get(), base(), bytes_);
}

void DeviceSegment::release() noexcept {
  mapping_.reset();
  memory_.reset();
}

void DeviceSegment::restore(GroupKernels& kernels) {
  const std::optional<Error> failed = try_step([&] {
    memory_ = runtime_.allocate(bytes_);
    mapping_ = runtime_.map_at(memory_, range_, 0);
    kernels.copy_to_device(base(), copy_.get(), bytes_);
  });
  if (!failed) return;
  release();
  throw Error(*failed);
}

}  // namespace symm
