// Tensors in memory that can become symmetric, and how a group gets to know them.
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <string>
#include <utility>

#include "backend/ProcessGroupSymm.hpp"
#include "backend/engine/blocking_section.hpp"
#include "backend/errors.hpp"
#include "symm_mem/fork_guard.hpp"
#include "symm_mem/local_heap.hpp"

namespace symm {

namespace {

// Memory of a GPU is unmapped at once, so nothing on the device may use it any more. A forked child
// has no use of the device and lets the memory be.
void release_from_gpu(at::Device device, std::shared_ptr<LocalSegment>& segment,
                      std::uint32_t generation) {
  if (fork_generation() != generation) {
    [[maybe_unused]] const auto* leaked = new std::shared_ptr<LocalSegment>(std::move(segment));
    return;
  }
  blocking_section([&] {
    try {
      const RelaxedCapture relaxed(gpu_runtime(device));
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (const std::exception& error) {
      LOG(WARNING) << "symm: " << device.str() << " reports an error: " << error.what();
    }
    segment.reset();
  });
}

at::Tensor tensor_on_gpu(std::int64_t bytes, at::Device device) {
  GpuRuntime& runtime = gpu_runtime(device);
  std::shared_ptr<LocalSegment> segment =
      allocate_on_local_heap(runtime, static_cast<std::size_t>(bytes));
  void* const base = segment->base();
  return at::for_blob(base, {bytes})
      .deleter([device, segment = std::move(segment), generation = fork_generation()](
                   void*) mutable { release_from_gpu(device, segment, generation); })
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

void ProcessGroupSymm::rendezvous(const at::Tensor& tensor, bool symmetric) {
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

at::Tensor allocate_symmetric(std::int64_t bytes, at::Device device) {
  return with_torch_errors([&] {
    if (bytes < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "bytes: expected 0 or more, got " + std::to_string(bytes));
    }
    if (device.is_cuda()) return tensor_on_gpu(bytes, device);
    if (!device.is_cpu()) {
      throw Error(ErrorCode::kUnsupported, "device: expected cpu or cuda, got " + device.str());
    }
    std::shared_ptr<LocalSegment> segment = allocate_on_local_heap(static_cast<std::size_t>(bytes));
    void* const base = segment->base();
    return at::from_blob(
        base, {bytes}, [segment = std::move(segment)](void*) mutable { segment.reset(); },
        at::TensorOptions().dtype(at::kByte));
  });
}

}  // namespace symm
