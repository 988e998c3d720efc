#include "kernels/gpu/entry/reduce_entry.cuh"

void symm::reduce_narrow_integer(ReduceKernelTable& table) {
  enter_rules<Dtype::kInt8, Dtype::kUInt8, Dtype::kBool>(table);
}
