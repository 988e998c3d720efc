// Reduction kernels for x86-64 with AVX2 and F16C.
#define SYMM_REDUCE_ISA avx2
#include "kernels/cpu/reduce_impl.hpp"

#if SYMM_HAS_X86_KERNELS
namespace symm {

const ReduceTable kReduceTableAvx2 = avx2::kTable;

}  // namespace symm
#endif
