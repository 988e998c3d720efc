// How torch gets to know the CPU kernels.
//
// NOTE [Registration]
// Where a version of torch lacks an operator, defines it otherwise or has a CPU kernel of its own
// by now, torch keeps what it has. The kernels are registered in their boxed form: the dispatcher
// asks that all unboxed kernels of an operator have the C++ signature of PyTorch's own, which no
// header declares. Operators that need multicast are registered so that their error says why they
// cannot work on the CPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "symm_mem/c10d/operators/all_to_all_vdev.hpp"
#include "symm_mem/c10d/operators/cpu_operators.hpp"
#include "symm_mem/c10d/operators/tile_reduce.hpp"

namespace symm {

namespace {

void refuse_multicast(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name().name,
      ": CPU tensors have no multicast memory: it is the switch between GPUs that combines or "
      "spreads the data. The operators of symm_mem without multimem or multicast in their names "
      "work on the CPU");
}

// The operator that torch defines as `schema`, where a kernel for the CPU is still missing.
bool is_ours(std::string_view name, std::string_view schema) {
  const auto op = c10::Dispatcher::singleton().findSchema({"symm_mem::" + std::string(name), ""});
  if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  if (schema.empty()) return true;
  std::ostringstream defined;
  defined << op->schema();
  return defined.str() == "symm_mem::" + std::string(schema);
}

template <auto kernel>
struct Boxed;

template <typename Result, typename... Args, Result (*kernel)(Args...)>
struct Boxed<kernel> {
  static void call(const c10::OperatorHandle&, torch::jit::Stack* stack) {
    if constexpr (std::is_void_v<Result>) {
      apply(*stack, std::index_sequence_for<Args...>());
      torch::jit::drop(*stack, sizeof...(Args));
    } else {
      Result result = apply(*stack, std::index_sequence_for<Args...>());
      torch::jit::drop(*stack, sizeof...(Args));
      torch::jit::push(*stack, std::move(result));
    }
  }

 private:
  template <std::size_t... index>
  static Result apply(torch::jit::Stack& stack, std::index_sequence<index...>) {
    return kernel(
        torch::jit::peek(stack, index, sizeof...(Args)).template to<std::decay_t<Args>>()...);
  }
};

template <auto kernel>
void add(torch::Library& library, std::string_view schema) {
  const std::string name(schema.substr(0, schema.find('(')));
  if (!is_ours(name, schema)) return;
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&Boxed<kernel>::call>());
}

void add_data_dependent_exchanges(torch::Library& library) {
  add<all_to_all_vdev>(library,
                       "all_to_all_vdev(Tensor input, Tensor(a!) out, Tensor in_splits, "
                       "Tensor(a!) out_splits_offsets, str group_name) -> ()");
  add<all_to_all_vdev_2d>(
      library,
      "all_to_all_vdev_2d(Tensor input, Tensor(a!) out, Tensor in_splits, Tensor(a!) "
      "out_splits_offsets, str group_name, int? major_align=None) -> ()");
  add<all_to_all_vdev_2d_offset>(
      library,
      "all_to_all_vdev_2d_offset(Tensor input, Tensor(a!) out, Tensor in_splits_offsets, "
      "Tensor(a!) out_splits_offsets, str group_name) -> ()");
}

void add_tile_reductions(torch::Library& library) {
  add<tile_reduce>(library,
                   "tile_reduce(Tensor in_tile, Tensor(a!) out_tile, int root, str group_name, "
                   "str reduce_op=\"sum\") -> ()");
  add<multi_root_tile_reduce>(
      library,
      "multi_root_tile_reduce(Tensor[] in_tiles, Tensor(a!) out_tile, int[] roots, "
      "str group_name, str reduce_op=\"sum\") -> ()");
}

}  // namespace

TORCH_LIBRARY_IMPL(symm_mem, CPU, library) {
  add<one_shot_all_reduce>(
      library, "one_shot_all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor");
  add<one_shot_all_reduce_out>(library,
                               "one_shot_all_reduce_out(Tensor input, str reduce_op, "
                               "str group_name, Tensor(a!) out) -> Tensor(a!)");
  add<one_shot_all_reduce_copy>(library,
                                "one_shot_all_reduce_copy(Tensor symm_buffer, Tensor local_input, "
                                "str reduce_op, str group_name) -> Tensor");
  add<one_shot_all_reduce_copy_out>(
      library,
      "one_shot_all_reduce_copy_out(Tensor symm_buffer, Tensor local_input, str reduce_op, "
      "str group_name, Tensor(a!) out) -> Tensor(a!)");
  add<two_shot_all_reduce_>(
      library,
      "two_shot_all_reduce_(Tensor(a!) input, str reduce_op, str group_name) -> Tensor(a!)");
  add<two_shot_all_reduce_out>(library,
                               "two_shot_all_reduce_out(Tensor(a!) input, str reduce_op, "
                               "str group_name, Tensor(b!) output) -> Tensor(b!)");
  add<reduce_scatter_out>(library,
                          "reduce_scatter_out(Tensor(a!) input, str group_name, "
                          "bool split_last_dim, Tensor(b!) output) -> Tensor(b!)");
  add<memset32_>(library,
                 "memset32_(Tensor(a!) input, int offset, int val, int count) -> Tensor(a!)");
  add<stream_write_value32_>(
      library, "stream_write_value32_(Tensor(a!) input, int offset, int val) -> Tensor(a!)");
  add_data_dependent_exchanges(library);
  add_tile_reductions(library);
  for (const char* name :
       {"multimem_all_reduce_", "multimem_one_shot_all_reduce", "multimem_one_shot_all_reduce_out",
        "multimem_one_shot_reduce_out", "multimem_all_gather_out", "memcpy_to_multicast_"}) {
    if (!is_ours(name, "")) continue;
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_multicast>());
  }
}

// What the Python-level operators (torch_symm/_operators.py) reduce with.
TORCH_LIBRARY_FRAGMENT(torch_symm, library) {
  library.def("reduce_parts(Tensor[] parts, str reduce_op) -> Tensor");
}

TORCH_LIBRARY_IMPL(torch_symm, CPU, library) { library.impl("reduce_parts", reduce_parts); }

}  // namespace symm
