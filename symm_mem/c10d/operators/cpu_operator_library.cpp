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

#include <string>
#include <string_view>

#include "symm_mem/c10d/operators/all_to_all_vdev.hpp"
#include "symm_mem/c10d/operators/boxed_kernel.hpp"
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

template <auto kernel>
void add(torch::Library& library, std::string_view schema) {
  const std::string name(schema.substr(0, schema.find('(')));
  if (!is_missing(name, schema, c10::DispatchKey::CPU)) return;
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&Boxed<kernel>::call>());
}

void add_for_both_devices(torch::Library& library) {
  add<all_to_all_vdev>(library, kVdevSchemas[0]);
  add<all_to_all_vdev_2d>(library, kVdevSchemas[1]);
  add<all_to_all_vdev_2d_offset>(library, kVdevSchemas[2]);
  add<tile_reduce>(library, kTileReduceSchemas[0]);
  add<multi_root_tile_reduce>(library, kTileReduceSchemas[1]);
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
  add_for_both_devices(library);
  for (const char* name :
       {"multimem_all_reduce_", "multimem_one_shot_all_reduce", "multimem_one_shot_all_reduce_out",
        "multimem_one_shot_reduce_out", "multimem_all_gather_out", "memcpy_to_multicast_"}) {
    if (!is_missing(name, "", c10::DispatchKey::CPU)) continue;
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_multicast>());
  }
}

// What the Python-level operators (torch_symm/_operators.py) reduce with.
TORCH_LIBRARY_FRAGMENT(torch_symm, library) {
  library.def("reduce_parts(Tensor[] parts, str reduce_op) -> Tensor");
}

TORCH_LIBRARY_IMPL(torch_symm, CPU, library) { library.impl("reduce_parts", reduce_parts); }

}  // namespace symm
