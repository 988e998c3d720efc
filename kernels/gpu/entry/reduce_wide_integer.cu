#include "kernels/gpu/entry/reduce_entry.cuh"

void symm::reduce_wide_integer(ReduceKernelTable& table) {
  enter_rules<Dtype::kInt16, Dtype::kInt32, Dtype::kInt64>(table);
}
