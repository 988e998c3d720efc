// Instantiates the reducing kernels of a dtype.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/gpu/entry/kernels.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

template <Dtype dtype, ReduceOp op>
ReduceKernelPair reduce_kernel_pair() {
  if constexpr (op_supports(op, dtype) &&
                reduction_rule(dtype, op) == ReductionRule{dtype, op, 1}) {
    using Rule = ElementRule<dtype, op>;
    return {reinterpret_cast<const void*>(&reduce_ll_kernel<Rule>),
            reinterpret_cast<const void*>(&reduce_pipeline_kernel<Rule>)};
  }
  return {};
}

template <Dtype dtype>
ReduceKernelRow reduce_kernel_row() {
  return []<std::size_t... ops>(std::index_sequence<ops...>) {
    return ReduceKernelRow{reduce_kernel_pair<dtype, static_cast<ReduceOp>(ops)>()...};
  }
  (std::make_index_sequence<kReduceOpCount>{});
}

}  // namespace symm
