// Tensors in memory that can become symmetric, and how a group gets to know them.
#include <ATen/ops/from_blob.h>

#include <string>
#include <utility>

#include "backend/process_group_impl.hpp"
#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/segment/local_heap.hpp"

namespace symm {

void ProcessGroupSymm::Impl::rendezvous(const at::Tensor& tensor, bool symmetric) {
  with_torch_errors([&] {
    engine_->check_usable();
    const TensorChecks checks("rendezvous", rank_, size_);
    checks.usable(tensor, {"tensor"});
    checks.group_device(tensor, {"tensor"}, gpu());
    std::shared_ptr<LocalSegment> segment =
        find_on_local_heap(tensor.const_data_ptr(), tensor.nbytes());
    if (!segment) {
      checks.fail(ErrorCode::kInvalidArgument, {"tensor"},
                  "expected a tensor from torch_symm's allocate(), got one in ordinary memory");
    }
    if (tensor.is_cuda()) device_launcher(tensor.device());
    engine_->queue().drain();
    engine_->communicator().rendezvous(std::move(segment), engine_->timeout(Milliseconds(0)),
                                       symmetric);
  });
}

void ProcessGroupSymm::Impl::segment_joined(std::shared_ptr<Segment> segment) {
  engine_->check_usable();
  const LocalSegment& local = *segment->local();
  if (local.runtime().kind() != DeviceKind::kHost) {
    const int index = static_cast<GpuRuntime&>(local.runtime()).identity().index;
    device_launcher(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
  }
  engine_->queue().drain();
  engine_->communicator().add_segment(std::move(segment), engine_->timeout(Milliseconds(0)));
}

void ProcessGroupSymm::Impl::segment_left(const std::shared_ptr<Segment>& segment) {
  engine_->queue().drain();
  engine_->communicator().remove_segment(segment);
}

at::Tensor allocate_symmetric(std::int64_t bytes, at::Device device) {
  return with_torch_errors([&] {
    if (bytes < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "bytes: expected 0 or more, got " + std::to_string(bytes));
    }
    const auto allocation = allocate(static_cast<std::size_t>(bytes), device, std::nullopt);
    return at::for_blob(allocation->base(), {bytes})
        .deleter([](void* base) { free_allocation(base); })
        .options(at::TensorOptions().dtype(at::kByte).device(allocation->device()))
        .target_device(allocation->device())
        .make_tensor();
  });
}

}  // namespace symm
