// Whether multimem can carry out a collective: loads that add on their way through the NVLink
// switch, and stores that reach every GPU, both on the multicast address of symmetric memory.
//
// Never run on hardware: the kernels are compiled, and the decisions here are tested. NOTE [What
// may decide] in plan.hpp holds: every fact must be shared by all ranks, so offsets count (in
// memory with symmetric registration), pointers do not. Pure; thread safe.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/collective.hpp"

namespace symm {

// The least compute capability that has the instructions: 9.0.
inline constexpr int kMultimemArchitecture = 90;

struct MultimemFacts {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Dtype dtype = Dtype::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t bytes = 0;  // of the message or of one share, which all ranks have alike
  // Every rank has a multicast address of the symmetric memory: of the input for reductions, of the
  // output for all kinds but reduce_scatter.
  bool has_multicast = false;
  int architecture = 0;  // the least of all ranks' GPUs; 90 for compute capability 9.0
  // In symmetric memory, in bytes from an address that is a multiple of 16; 0 for ordinary memory,
  // at any address.
  std::uint64_t input_offset = 0;
  std::uint64_t output_offset = 0;
  // The caller requires the bits that every other algorithm gives. The switch adds in an order of
  // its own, so reductions need this waived; moving data is exact in any case. MIN and MAX
  // guarantee nothing about NaN.
  bool same_bits = true;
};

// One sentence: why multimem cannot carry out the call, and what it needs; empty where it can. For
// a caller that named the algorithm.
std::string multimem_refusal(const MultimemFacts& facts);

}  // namespace symm
