// One call with inputs of its own, carried out on the host and on the GPU by one communicator: all
// bytes of all buffers must be the same afterwards.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "test/gpu/gpu_ranks.hpp"

namespace symm::test {

struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t count = 0;  // elements of the message or of a share
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  bool in_place = false;
  bool uneven = false;    // shares of different size, where the kind allows it
  std::size_t shift = 0;  // bytes from an aligned address

  std::string name() const {
    return std::string(collective_name(kind)) + " of " + std::to_string(count) + " " +
           std::string(dtype_name(dtype)) + " " + std::string(reduce_op_name(op)) + " root " +
           std::to_string(root) + (in_place ? " in place" : "") + (uneven ? " uneven" : "") +
           " shifted by " + std::to_string(shift);
  }
};

// Where the parts of a call stand, relative to two regions of memory.
class CallShape {
 public:
  CallShape(const Call& call, int rank, int world) : call_(call), rank_(rank), world_(world) {}

  std::size_t input_bytes() const { return elements(/*input=*/true) * size() + call_.shift; }
  std::size_t output_bytes() const { return elements(/*input=*/false) * size() + call_.shift; }

  // The arguments over these regions; valid as long as this object. In place means that only one of
  // the regions is used.
  CollectiveArgs args(std::byte* input, std::byte* output) {
    input += call_.shift;
    output += call_.shift;
    CollectiveArgs args;
    args.kind = call_.kind;
    args.dtype = call_.dtype;
    args.op = call_.op;
    args.root = call_.root;
    args.factor = 0.25 * rank_ - 0.3;
    args.count = share(rank_);
    args.input = input;
    args.output = output;
    in_parts_.clear();
    out_parts_.clear();
    for (int r = 0; r < world_; ++r) {
      in_parts_.push_back({input, part(rank_, r)});
      input += in_parts_.back().count * size();
      out_parts_.push_back({output, part(r, rank_)});
      output += out_parts_.back().count * size();
    }
    const auto self = static_cast<std::size_t>(rank_);
    if (call_.in_place && call_.kind == CollectiveKind::kAllGather) {
      args.input = out_parts_[self].data;
    } else if (call_.in_place && call_.kind == CollectiveKind::kReduceScatter) {
      args.output = in_parts_[self].data;
    } else if (call_.in_place) {
      args.output = const_cast<void*>(args.input);
    }
    if (takes_parts(true)) args.input_parts = in_parts_;
    if (takes_parts(false)) args.output_parts = out_parts_;
    return args;
  }

 private:
  std::size_t size() const { return dtype_bytes(call_.dtype); }
  bool takes_parts(bool input) const {
    switch (call_.kind) {
      case CollectiveKind::kAllToAll:
        return true;
      case CollectiveKind::kScatter:
        return input && rank_ == call_.root;
      case CollectiveKind::kReduceScatter:
        return input;
      case CollectiveKind::kGather:
        return !input && rank_ == call_.root;
      case CollectiveKind::kAllGather:
        return !input;
      default:
        return false;
    }
  }
  std::size_t share(int rank) const {
    const bool lists =
        call_.kind == CollectiveKind::kAllGather || call_.kind == CollectiveKind::kReduceScatter;
    return call_.count + (call_.uneven && lists ? 3 * static_cast<std::size_t>(rank) : 0);
  }
  // Elements of the part that `from` has for `to`.
  std::size_t part(int from, int to) const {
    if (call_.kind == CollectiveKind::kAllToAll) {
      return call_.uneven ? call_.count * static_cast<std::size_t>((from + 2 * to) % 3)
                          : call_.count;
    }
    return share(call_.kind == CollectiveKind::kReduceScatter ? to : from);
  }
  std::size_t elements(bool input) const {
    const bool many =
        call_.kind == CollectiveKind::kAllToAll ||
        (input ? call_.kind == CollectiveKind::kScatter ||
                     call_.kind == CollectiveKind::kReduceScatter
               : call_.kind == CollectiveKind::kAllGather || call_.kind == CollectiveKind::kGather);
    std::size_t total = 0;
    for (int r = 0; many && r < world_; ++r) total += input ? part(rank_, r) : part(r, rank_);
    return many ? total : share(rank_);
  }

  Call call_;
  int rank_;
  int world_;
  std::vector<Part> in_parts_;
  std::vector<Part> out_parts_;
};

// Bytes that depend on rank and place. Floating-point numbers stay below 2, so that sums in any
// order are numbers; their low bits tell one order from another.
inline std::vector<std::byte> call_input(const Call& call, int rank, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(rank + 1) + call.count;
  const std::size_t size = dtype_bytes(call.dtype);
  const std::size_t real = is_complex(call.dtype) ? size / 2 : size;
  for (std::size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<std::byte>(state >> 56);
    if (call.dtype == Dtype::kBool) data[i] &= std::byte{1};
    const bool top = i >= call.shift && (i - call.shift) % real == real - 1;
    const bool is_number = is_floating(call.dtype) || is_complex(call.dtype);
    if (is_number && top) data[i] &= std::byte{0xbf};
  }
  return data;
}

// Carries `call` out on the host and, in the regions `input` and `output` of device memory, on the
// GPU, and compares all bytes.
inline void check_call(GpuRank& rank, const Call& call, std::byte* input, std::byte* output) {
  SCOPED_TRACE(call.name() + ", rank " + std::to_string(rank.number()) + " of " +
               std::to_string(rank.world()));
  constexpr std::byte kPoison{0xa5};
  CallShape shape(call, rank.number(), rank.world());
  std::vector<std::byte> host_input = call_input(call, rank.number(), shape.input_bytes());
  std::vector<std::byte> host_output(shape.output_bytes(), kPoison);
  if (call.in_place && call.kind == CollectiveKind::kAllGather) {
    host_output = call_input(call, rank.number(), shape.output_bytes());
  }
  ASSERT_LE(std::max(host_input.size(), host_output.size()), GpuRank::kRegionBytes);
  rank.write(input, host_input);
  rank.write(output, host_output);
  rank.launch(shape.args(input, output));
  rank.communicator.run(shape.args(host_input.data(), host_output.data()));
  rank.finish();
  EXPECT_EQ(rank.read(input, host_input.size()) == host_input, true) << "input region";
  EXPECT_EQ(rank.read(output, host_output.size()) == host_output, true) << "output region";
}

inline void check_call(GpuRank& rank, const Call& call) {
  check_call(rank, call, rank.input(), rank.output());
}

}  // namespace symm::test
