// Reduction kernels for x86-64 with AVX2 and F16C.
#define SYMM_REDUCE_ISA avx2
#include "kernels/cpu/reduce_impl.hpp"

const symm::ReduceTable symm::kReduceTableAvx2 = symm::avx2::kTable;
