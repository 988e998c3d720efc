#include "kernels/gpu/entry/reduce_entry.cuh"

void symm::reduce_float32(ReduceKernelTable& table) {
  enter_rules<Dtype::kFloat32, Dtype::kFloat64, Dtype::kComplex64, Dtype::kComplex128>(table);
}
