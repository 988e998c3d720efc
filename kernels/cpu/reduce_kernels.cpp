#include "kernels/cpu/reduce_kernels.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/core/dtype.hpp"
#include "kernels/core/error.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_table.hpp"

#if SYMM_HAS_X86_KERNELS
#include <cpuid.h>
#endif

namespace symm {
namespace {

#if SYMM_HAS_X86_KERNELS
// The builtin also tests that the operating system saves the wide registers.
Isa best_isa() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!has_f16c || !__builtin_cpu_supports("avx2")) return Isa::kBaseline;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? Isa::kAvx512 : Isa::kAvx2;
}
#else
Isa best_isa() { return Isa::kBaseline; }
#endif

Isa isa_from_environment() {
  const char* wanted = std::getenv("SYMM_ISA");
  if (wanted == nullptr || *wanted == '\0') return best_isa();
  const auto found = std::find(kIsaNames.begin(), kIsaNames.end(), wanted);
  if (found == kIsaNames.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("SYMM_ISA: expected baseline, avx2 or avx512, got '") + wanted + "'");
  }
  const auto isa = static_cast<Isa>(found - kIsaNames.begin());
  if (!isa_available(isa)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("SYMM_ISA: this processor or operating system does not run '") +
                    wanted + "'; the best that it runs is '" + std::string(isa_name(best_isa())) +
                    "'");
  }
  return isa;
}

const ReduceTable& table_of(Isa isa) {
#if SYMM_HAS_X86_KERNELS
  if (isa == Isa::kAvx512) return kReduceTableAvx512;
  if (isa == Isa::kAvx2) return kReduceTableAvx2;
#else
  if (isa != Isa::kBaseline) {
    throw Error(ErrorCode::kUnsupported, "reduce_kernels: no '" + std::string(isa_name(isa)) +
                                             "' kernels in a build for this architecture");
  }
#endif
  return kReduceTableBaseline;
}

}  // namespace

bool isa_available(Isa isa) { return isa <= best_isa(); }

Isa selected_isa() {
  static const Isa isa = isa_from_environment();
  return isa;
}

const ReduceKernels& reduce_kernels(Dtype dtype, ReduceOp op, Isa isa) {
  if (!op_supports(op, dtype)) {
    throw Error(ErrorCode::kUnsupported, "reduce op " + std::string(reduce_op_name(op)) +
                                             " has no meaning for dtype " +
                                             std::string(dtype_name(dtype)));
  }
  const int cell = static_cast<int>(dtype) * kReduceOpCount + static_cast<int>(op);
  return table_of(isa).kernels[cell];
}

}  // namespace symm
