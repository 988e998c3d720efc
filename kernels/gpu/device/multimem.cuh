// Loads and stores on multicast addresses, by PTX's multimem instructions of compute capability 9.0
// and more. Never run on hardware.
//
// Kernels take them as a class, `Multicast`, so that a test puts another in its place:
//
//   kExists                   false where the device that is compiled for has none
//   Multicast(memory, world)  for the addresses of a call
//   pull<dtype, op>(address)  the combination of all ranks' 16 bytes behind `address`
//   push(address, unit)       stores 16 bytes, of any type, on every rank
#pragma once

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

#define SYMM_PULL(instruction, address, unit)                                           \
  asm volatile("multimem.ld_reduce.relaxed.sys." instruction " {%0, %1, %2, %3}, [%4];" \
               : "=r"((unit).words[0]), "=r"((unit).words[1]), "=r"((unit).words[2]),   \
                 "=r"((unit).words[3])                                                  \
               : "l"(address)                                                           \
               : "memory")

// The switch between the GPUs.
class SwitchMulticast {
 public:
  static constexpr bool kExists = SYMM_MULTIMEM != 0;

  __device__ SwitchMulticast(const MultimemParams&, int /*world_size*/) {}

  template <Dtype dtype, ReduceOp op>
  __device__ Unit pull([[maybe_unused]] const std::byte* address) const {
    Unit unit{};
#if SYMM_MULTIMEM
    if constexpr (dtype == Dtype::kFloat32) {
      static_assert(op == ReduceOp::kSum);
      float a;
      float b;
      float c;
      float d;
      asm volatile("multimem.ld_reduce.relaxed.sys.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
                   : "l"(address)
                   : "memory");
      unit = {{__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)}};
    } else if constexpr (dtype == Dtype::kFloat16) {
      if constexpr (op == ReduceOp::kSum) SYMM_PULL("add.acc::f32.v4.f16x2", address, unit);
      if constexpr (op == ReduceOp::kMin) SYMM_PULL("min.v4.f16x2", address, unit);
      if constexpr (op == ReduceOp::kMax) SYMM_PULL("max.v4.f16x2", address, unit);
    } else {
      static_assert(dtype == Dtype::kBFloat16);
      if constexpr (op == ReduceOp::kSum) SYMM_PULL("add.acc::f32.v4.bf16x2", address, unit);
      if constexpr (op == ReduceOp::kMin) SYMM_PULL("min.v4.bf16x2", address, unit);
      if constexpr (op == ReduceOp::kMax) SYMM_PULL("max.v4.bf16x2", address, unit);
    }
#endif
    return unit;
  }

  __device__ void push([[maybe_unused]] std::byte* address,
                       [[maybe_unused]] const Unit& unit) const {
#if SYMM_MULTIMEM
    asm volatile("multimem.st.relaxed.sys.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "f"(__uint_as_float(unit.words[0])), "f"(__uint_as_float(unit.words[1])),
                 "f"(__uint_as_float(unit.words[2])), "f"(__uint_as_float(unit.words[3]))
                 : "memory");
#endif
  }
};
#undef SYMM_PULL

}  // namespace symm
