// The tables that the translation units of the single instruction sets export. Internal to
// kernels/cpu; callers use reduce_kernels().
#pragma once

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"

// Whether the translation units of AVX2 and AVX-512 are part of the build; elsewhere there is only
// the baseline.
#if defined(__x86_64__)
#define SYMM_HAS_X86_KERNELS 1
#else
#define SYMM_HAS_X86_KERNELS 0
#endif

namespace symm {

// Row-major by Dtype, then ReduceOp. Entries without a meaning hold null pointers.
struct ReduceTable {
  ReduceKernels kernels[kDtypeCount * kReduceOpCount];
};

extern const ReduceTable kReduceTableBaseline;
#if SYMM_HAS_X86_KERNELS
extern const ReduceTable kReduceTableAvx2;
extern const ReduceTable kReduceTableAvx512;
#endif

}  // namespace symm
