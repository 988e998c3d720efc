// Reduction kernels for x86-64 with AVX-512 F, BW, DQ and VL.
#define SYMM_REDUCE_ISA avx512
#include "kernels/cpu/reduce_impl.hpp"

#if SYMM_HAS_X86_KERNELS
namespace symm {

const ReduceTable kReduceTableAvx512 = avx512::kTable;

}  // namespace symm
#endif
