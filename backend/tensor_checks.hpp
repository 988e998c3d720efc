// What a tensor must be to take part in a collective, and the messages where it is not.
//
// Every check throws Error before anything is sent: kInvalidArgument, kInvalidType for a dtype that
// is not that of the call's other tensors, or kUnsupported. A message names the collective, the
// argument, what was expected, what came, and the rank. Text is built only on failure.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/dtype.hpp"
#include "kernels/core/error.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm {

// The name of an argument as the user knows it; `index` where it is one of a list.
struct Argument {
  static constexpr std::size_t kNotInList = static_cast<std::size_t>(-1);
  const char* name;
  std::size_t index = kNotInList;
  std::string text() const;
};

class TensorChecks {
 public:
  // `operation` outlives the object. `rank` is the group rank and `global_rank` what the program
  // calls this process, for messages.
  TensorChecks(std::string_view operation, int rank, int world_size, std::int64_t global_rank)
      : operation_(operation), rank_(rank), world_size_(world_size), global_rank_(global_rank) {}

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::int64_t global_rank() const { return global_rank_; }

  [[noreturn]] void fail(ErrorCode code, const Argument& argument,
                         const std::string& problem) const;

  // Dense memory on the host or on a GPU, not a lazily conjugated or negated view.
  void usable(const at::Tensor& tensor, const Argument& argument) const;
  // As usable(), except that a conjugated or negated view is fine: it will be copied.
  void readable(const at::Tensor& tensor, const Argument& argument) const;
  // usable() and contiguous, for memory that the collective writes.
  void writable(const at::Tensor& tensor, const Argument& argument) const;

  // Element type for a reduction: one that arithmetic is defined for.
  Dtype arithmetic_dtype(const at::Tensor& tensor, const Argument& argument) const;
  // Element type for moving data: any type of 1, 2, 4, 8 or 16 bytes.
  Dtype movable_dtype(const at::Tensor& tensor, const Argument& argument) const;
  void same_dtype(const at::Tensor& tensor, const Argument& argument,
                  at::ScalarType expected) const;

  // A GPU tensor is on `gpu`, the index of the one that the group uses on this rank; -1 while it
  // uses none, where the device library must be able to serve the tensor's.
  void group_device(const at::Tensor& tensor, const Argument& argument, int gpu) const;
  void same_device(const at::Tensor& tensor, const Argument& argument, at::Device expected) const;

  void rank_in_range(std::int64_t rank, const char* name) const;
  void list_size(std::size_t size, std::size_t expected, const char* name) const;
  void element_count(std::size_t count, std::size_t expected, const Argument& argument) const;

  // The one tensor of a list that c10d passes for historical reasons.
  template <typename T>
  T& only(std::vector<T>& list, const char* name) const {
    list_size(list.size(), 1, name);
    return list.front();
  }

  // PREMUL_SUM's factor is written to `factor`; other operators leave it alone. A factor that is a
  // tensor on a GPU is read by the host, which waits for the current stream, and is refused while
  // that is captured; a number costs nothing.
  ReduceOp reduce_op(const c10d::ReduceOp& op, double& factor) const;

 private:
  std::string_view operation_;
  int rank_;
  int world_size_;
  std::int64_t global_rank_;
};

// Hash of the order in which a dense tensor's elements lie in memory; 0 where it is contiguous.
std::uint32_t layout_hash(const at::Tensor& tensor);

}  // namespace symm
