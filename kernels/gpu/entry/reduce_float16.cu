#include "kernels/gpu/entry/reduce_entry.cuh"

void symm::reduce_float16(ReduceKernelTable& table) {
  enter_rules<Dtype::kFloat16, Dtype::kBFloat16>(table);
}
