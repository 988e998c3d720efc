// Host reduction kernels, one set a (dtype, op), instantiated for three instruction sets and
// chosen once at run time.
//
// All functions are local, thread safe, allocate nothing, and accept any alignment. `count` is in
// elements. A destination may be one of the sources (element i is read before it is written);
// otherwise buffers must not overlap.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm {

struct ReduceKernels {
  // dst[i] = round(finish(in_0[i] op in_1[i] op ... in_{n-1}[i])), combined in that order.
  // `factors[j]` multiplies source j for PREMUL_SUM and is not read (may be null) for other ops.
  // `divisor` is the world size that AVG divides by. n >= 1; n == 1 still applies AVG's division
  // and PREMUL_SUM's factor.
  void (*reduce)(void* dst, const void* const* srcs, int n, const double* factors, int divisor,
                 std::size_t count);

  // One hop of an ordered ring. acc_out[i] = acc_in[i] op src[i] in the accumulate type;
  // acc_in == nullptr starts the chain: acc_out[i] = src[i]. acc_out may be acc_in.
  void (*accumulate)(void* acc_out, const void* acc_in, const void* src, double factor,
                     std::size_t count);

  // The last hop: dst[i] = round(finish(acc_in[i] op src[i])); the same bits as reduce().
  void (*finish)(void* dst, const void* acc_in, const void* src, double factor, int divisor,
                 std::size_t count);

  std::size_t accumulate_bytes;  // bytes of one element in the accumulate type
};

enum class Isa { kBaseline, kAvx2, kAvx512 };  // a processor runs all up to its best

inline constexpr std::array<std::string_view, 3> kIsaNames = {"baseline", "avx2", "avx512"};

constexpr std::string_view isa_name(Isa isa) { return kIsaNames[static_cast<std::size_t>(isa)]; }

// True where this processor (and operating system) runs `isa`.
bool isa_available(Isa isa);

// The best available one; SYMM_ISA=baseline|avx2|avx512 lowers it. Throws Error(kInvalidArgument)
// for another value or one that the processor lacks. Read once a process.
Isa selected_isa();

// The kernels of (dtype, op) for `isa`. Throws Error(kUnsupported), naming op and dtype, where
// op_supports() is false.
const ReduceKernels& reduce_kernels(Dtype dtype, ReduceOp op, Isa isa);

}  // namespace symm
