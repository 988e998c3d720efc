// What registers kernels of PyTorch's operators needs: whether torch has the operator as we know
// it, and a kernel's boxed form (NOTE [Registration] in cpu_operator_library.cpp).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace symm {

inline constexpr std::array<std::string_view, 3> kVdevSchemas = {
    "all_to_all_vdev(Tensor input, Tensor(a!) out, Tensor in_splits, "
    "Tensor(a!) out_splits_offsets, str group_name) -> ()",
    "all_to_all_vdev_2d(Tensor input, Tensor(a!) out, Tensor in_splits, Tensor(a!) "
    "out_splits_offsets, str group_name, int? major_align=None) -> ()",
    "all_to_all_vdev_2d_offset(Tensor input, Tensor(a!) out, Tensor in_splits_offsets, "
    "Tensor(a!) out_splits_offsets, str group_name) -> ()"};
inline constexpr std::array<std::string_view, 2> kTileReduceSchemas = {
    "tile_reduce(Tensor in_tile, Tensor(a!) out_tile, int root, str group_name, "
    "str reduce_op=\"sum\") -> ()",
    "multi_root_tile_reduce(Tensor[] in_tiles, Tensor(a!) out_tile, int[] roots, "
    "str group_name, str reduce_op=\"sum\") -> ()"};

// The operator symm_mem::`name`, where torch defines it as `schema` or that is "".
inline std::optional<c10::OperatorHandle> find_operator(std::string_view name,
                                                        std::string_view schema) {
  const auto op = c10::Dispatcher::singleton().findSchema({"symm_mem::" + std::string(name), ""});
  if (!op || schema.empty()) return op;
  std::ostringstream defined;
  defined << op->schema();
  return defined.str() == "symm_mem::" + std::string(schema) ? op : std::nullopt;
}

inline bool is_missing(std::string_view name, std::string_view schema, c10::DispatchKey key) {
  const auto op = find_operator(name, schema);
  return op && !op->hasKernelForDispatchKey(key);
}

template <auto kernel>
struct Boxed;

template <typename Result, typename... Args, Result (*kernel)(Args...)>
struct Boxed<kernel> {
  static void call(const c10::OperatorHandle&, torch::jit::Stack* stack) {
    if constexpr (std::is_void_v<Result>) {
      apply(*stack, std::index_sequence_for<Args...>());
      torch::jit::drop(*stack, sizeof...(Args));
    } else {
      Result result = apply(*stack, std::index_sequence_for<Args...>());
      torch::jit::drop(*stack, sizeof...(Args));
      torch::jit::push(*stack, std::move(result));
    }
  }

 private:
  template <std::size_t... index>
  static Result apply(torch::jit::Stack& stack, std::index_sequence<index...>) {
    return kernel(
        torch::jit::peek(stack, index, sizeof...(Args)).template to<std::decay_t<Args>>()...);
  }
};

}  // namespace symm
