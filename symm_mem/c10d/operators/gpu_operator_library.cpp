// How torch gets to know the kernels for GPUs, where it has none or its own serve NVSHMEM's memory
// alone.
//
// NOTE [Operators of several providers]
// A dispatch key holds one kernel. Ours takes the place of PyTorch's, and hands on to it the calls
// that are not over memory of symm: those whose first tensor is not, while symm is not the provider
// that torch has chosen either. So programs over NVSHMEM go on as before, and an ordinary tensor
// gets the error of the provider in use.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <optional>
#include <string>
#include <string_view>

#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/operators/all_to_all_vdev.hpp"
#include "symm_mem/c10d/operators/boxed_kernel.hpp"
#include "symm_mem/c10d/operators/tile_reduce.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"

namespace symm {

namespace {

// The first tensor of the call, or of its first list; undefined where there is none.
at::Tensor first_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::IValue& first = torch::jit::peek(stack, 0, op.schema().arguments().size());
  if (first.isTensor()) return first.toTensor();
  const auto list = first.toTensorList();
  return list.empty() ? at::Tensor() : list.get(0);
}

bool is_for_symm(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  if (find_allocation(tensor.const_data_ptr()) != nullptr) return true;
  return c10d::symmetric_memory::get_backend(tensor.device()) == kSymmetricMemoryName;
}

// PyTorch's kernel of an operator, before ours took its place.
template <auto kernel>
std::optional<c10::SafeKernelFunction>& kernel_before() {
  static std::optional<c10::SafeKernelFunction> one;
  return one;
}

template <auto kernel>
void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& before = kernel_before<kernel>();
  if (!before || is_for_symm(first_tensor(op, *stack))) {
    Boxed<kernel>::call(op, stack);
  } else {
    before->callBoxed(op, keys, stack);
  }
}

template <auto kernel>
void add_on_gpu(torch::Library& library, std::string_view schema) {
  const std::string name(schema.substr(0, schema.find('(')));
  const auto op = find_operator(name, schema);
  if (!op) return;
  constexpr auto kKey = c10::DispatchKey::CUDA;
  if (op->hasKernelForDispatchKey(kKey)) {
    kernel_before<kernel>() = op->getComputedKernelForDispatchKey(kKey);
  }
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call<kernel>>());
}

// PyTorch warns of a kernel that takes another's place, which here is as meant.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

TORCH_LIBRARY_IMPL(symm_mem, CUDA, library) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  add_on_gpu<all_to_all_vdev>(library, kVdevSchemas[0]);
  add_on_gpu<all_to_all_vdev_2d>(library, kVdevSchemas[1]);
  add_on_gpu<all_to_all_vdev_2d_offset>(library, kVdevSchemas[2]);
  add_on_gpu<tile_reduce>(library, kTileReduceSchemas[0]);
  add_on_gpu<multi_root_tile_reduce>(library, kTileReduceSchemas[1]);
}

}  // namespace symm
