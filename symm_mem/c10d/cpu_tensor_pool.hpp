// Tensors of the CPU in memory that can become symmetric, for programs that allocate and free the
// same sizes over and over: what c10d's Backend::allocateTensor and getMemAllocator give out.
//
// NOTE [Memory that comes again]
// The pages of symmetric memory are all made when it is allocated, which takes longer than what a
// program does with it. So what is freed is kept, at most kMostKeptBytes of it, and comes again for
// a request of the same number of granules, with what was in it. Memory that has joined a group
// does not come again: its rendezvous would be local on this rank, and on a rank that was given new
// memory it would wait for this one.
//
// Local, thread safe. A forked child gets memory of its own: what it inherits is shared with its
// parent.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>

namespace symm {

inline constexpr std::size_t kPoolGranule = std::size_t{64} << 10;
inline constexpr std::size_t kMostKeptBytes = std::size_t{256} << 20;

// Lives as long as the process. Its memory is not initialised. Throws PyTorch's exceptions.
c10::Allocator& cpu_tensor_pool();

// One dimension of `count` elements. Throws Error(kInvalidArgument) for a count below 0 or too
// large, kUnsupported for another device than the CPU, for pinned memory and for other layouts;
// Error(kSystem) where there is no memory.
at::Tensor allocate_cpu_tensor(std::int64_t count, const at::TensorOptions& options);

struct CpuTensorPoolStatistics {
  std::uint64_t used_bytes = 0;  // given out and not freed yet
  std::uint64_t kept_bytes = 0;  // freed, to come again
};
CpuTensorPoolStatistics cpu_tensor_pool_statistics();

}  // namespace symm
