// Instantiates the reducing kernels of one rule.
#pragma once

#include "kernels/gpu/entry/kernels.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

template <Dtype dtype, ReduceOp op>
ReduceKernelEntry reduce_entry() {
  static_assert(reduction_rule(dtype, op) == ReductionRule{dtype, op, 1}, "not a compiled rule");
  using Rule = ElementRule<dtype, op>;
  return {dtype, op, reinterpret_cast<const void*>(&reduce_ll_kernel<Rule>),
          reinterpret_cast<const void*>(&reduce_pipeline_kernel<Rule>)};
}

}  // namespace symm
