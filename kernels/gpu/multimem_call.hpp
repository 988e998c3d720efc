// A collective on multicast addresses (NOTE [Multimem] in multimem.cu), as SignalKernels launches
// it. Plain data; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/collective.hpp"

namespace symm {

// A piece of symmetric memory: its multicast address, and by rank the address of the same place in
// the memory of that rank, [world_size].
struct MulticastMemory {
  std::byte* multicast = nullptr;
  std::span<std::byte* const> ranks;
};

// Which memory a kind reads and writes; what is not named may be left out:
//
//   all_reduce      input and output of `bytes`, which may be the same
//   reduce_scatter  input of world_size shares of `bytes`, local_output of one
//   all_gather      local_input of one share of `bytes`, output of world_size shares
//   broadcast       local_input of `bytes` at the root, output of `bytes` on every rank
//
// Addresses are multiples of 16; shares, too. local_input may lie in the output, in its place.
struct MultimemCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // group rank
  std::uint64_t bytes = 0;
  MulticastMemory input;
  MulticastMemory output;
  const std::byte* local_input = nullptr;
  std::byte* local_output = nullptr;
  // Blocks of the launch, 1 to kMaxChannels, the same on every rank; each takes a signal channel,
  // from that of the options on.
  int blocks = 16;
};

}  // namespace symm
