// The tensors of the other ranks, which the operators of symm_mem read in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/core/dtype.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "symm_mem/c10d/symmetric_memory.hpp"

namespace symm {

// The addresses of a symmetric tensor on every rank of a group.
class PeerBuffers {
 public:
  // Collective where the tensor has not met this group yet. `name` is the argument's, for messages.
  // Throws c10::Error for memory that is not symmetric, and what a rendezvous throws.
  PeerBuffers(const char* op, const char* name, const at::Tensor& tensor,
              const std::string& group_name);

  int rank() const { return memory_->get_rank(); }
  int world_size() const { return static_cast<int>(bases_.size()); }
  std::size_t element_bytes() const { return element_bytes_; }

  // The element of `rank`'s tensor that lies `index` elements behind its first one.
  std::byte* at(int rank, std::size_t index) const {
    return static_cast<std::byte*>(bases_[static_cast<std::size_t>(rank)]) + index * element_bytes_;
  }

  // By rank, of the tensor's first element.
  std::vector<std::byte*> addresses() const;

  // Collective. Ends as a barrier of the handle does, by an exception too; on a GPU an operation of
  // the current stream.
  void barrier() const;

  // Of memory on a GPU: launch_with_signals() on the channel of barrier().
  void launch(const GpuLaunch& launch) const;

 private:
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> memory_;
  std::vector<void*> bases_;
  std::size_t element_bytes_;
};

const ReduceKernels& kernels_for(Dtype dtype, ReduceOp op);

// Sums elements of all ranks in their order, in float32 where they are narrower, rounded once.
class RankSum {
 public:
  // `buffers` must outlive it.
  RankSum(const PeerBuffers& buffers, Dtype dtype)
      : buffers_(buffers),
        sources_(static_cast<std::size_t>(buffers.world_size())),
        kernels_(kernels_for(dtype, ReduceOp::kSum)) {}

  // To `result`, `count` elements that lie next to each other from `first` on.
  void operator()(void* result, std::size_t first, std::size_t count);

 private:
  const PeerBuffers& buffers_;
  std::vector<const void*> sources_;
  const ReduceKernels& kernels_;
};

}  // namespace symm
