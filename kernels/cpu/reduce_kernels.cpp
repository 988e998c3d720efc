#include "kernels/cpu/reduce_kernels.hpp"

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

constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

#if SYMM_HAS_X86_KERNELS
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The builtin also tests that the operating system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

Isa best_isa() {
  if (has_avx512()) return Isa::kAvx512;
  return has_avx2() ? Isa::kAvx2 : Isa::kBaseline;
}

Isa isa_from_environment() {
  const char* wanted = std::getenv("SYMM_ISA");
  if (wanted == nullptr || *wanted == '\0') return best_isa();
  for (const Isa isa : kAllIsas) {
    if (isa_name(isa) != wanted) continue;
    if (isa_available(isa)) return isa;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("SYMM_ISA: this processor or operating system does not run '") +
                    wanted + "'; the best that it runs is '" + std::string(isa_name(best_isa())) +
                    "'");
  }
  throw Error(ErrorCode::kInvalidArgument,
              std::string("SYMM_ISA: expected baseline, avx2 or avx512, got '") + wanted + "'");
}

const ReduceTable& table_of(Isa isa) {
#if SYMM_HAS_X86_KERNELS
  if (isa == Isa::kAvx512) return kReduceTableAvx512;
  if (isa == Isa::kAvx2) return kReduceTableAvx2;
#endif
  if (isa == Isa::kBaseline) return kReduceTableBaseline;
  throw Error(ErrorCode::kUnsupported, "reduce_kernels: no '" + std::string(isa_name(isa)) +
                                           "' kernels in a build for this architecture");
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool isa_available(Isa isa) {
  if (isa == Isa::kAvx512) return has_avx512();
  return isa == Isa::kAvx2 ? has_avx2() : isa == Isa::kBaseline;
}

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
