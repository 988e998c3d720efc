// Reduction kernels for x86-64 with AVX-512 F, BW, DQ and VL.
#define SYMM_REDUCE_ISA avx512
#include "kernels/cpu/reduce_impl.hpp"

const symm::ReduceTable symm::kReduceTableAvx512 = symm::avx512::kTable;
