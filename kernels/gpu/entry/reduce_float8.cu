#include "kernels/gpu/entry/reduce_entry.cuh"

void symm::reduce_float8(ReduceKernelTable& table) {
  enter_rules<Dtype::kFloat8E4M3Fn, Dtype::kFloat8E5M2, Dtype::kFloat8E4M3FnUz,
              Dtype::kFloat8E5M2FnUz>(table);
}
