// Enters the reducing kernels of some dtypes.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/gpu/entry/bulk_kernels.cuh"
#include "kernels/gpu/entry/fold_kernel.cuh"
#include "kernels/gpu/entry/wire_kernels.cuh"

namespace symm {

template <Dtype dtype, ReduceOp op, class Shared>
void enter_rule(ReduceKernelTable& table) {
  if constexpr (is_rule(dtype, op)) {
    constexpr OwnKernels kOwn = own_kernels(dtype, op);
    using Rules = std::conditional_t<has_own_kernels(dtype, op), ElementRule<dtype, op>, Shared>;
    table[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)] = {
        wire_kernels<Rules, kOwn>(), bulk_kernels<Rules, kOwn>(),
        reinterpret_cast<const void*>(&fold_kernel<Rules>)};
  }
}

template <Dtype dtype, class Shared, std::size_t... ops>
void enter_rules_of(ReduceKernelTable& table, std::index_sequence<ops...>) {
  (enter_rule<dtype, static_cast<ReduceOp>(ops), Shared>(table), ...);
}

// Rules without kernels of their own share kernels with those of the other dtypes.
template <Dtype... dtypes>
void enter_rules(ReduceKernelTable& table) {
  constexpr auto kOps = std::make_index_sequence<kReduceOpCount>{};
  (enter_rules_of<dtypes, SharedRules<dtypes...>>(table, kOps), ...);
}

}  // namespace symm
