// Runs one collective on the ranks of a rig, and compares all bytes with what the host's reduction
// kernels and plain copies give.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {

using Bytes = std::vector<std::byte>;
inline constexpr std::byte kPoison{0xA5};
// Device buffers start this far from an aligned address in the misaligned cases.
inline constexpr std::size_t kOdd = 16;

struct CollectiveCall {
  CollectiveKind kind;
  Plan plan;
  Dtype dtype = Dtype::kInt32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<std::size_t> counts;  // by rank: shares; for the others all are equal
  int root = 0;
  bool in_place = false;
  std::size_t offset = 0;  // of every buffer from an aligned address
  // Whose buffers begin four bytes further: a bit a rank.
  std::uint64_t shifted = 0;
  // Whose outputs lie in a symmetric segment, which every rank knows: a bit a rank.
  std::uint64_t registered = 0;
  bool root_last = false;  // launches when the others have begun
};

inline std::string describe(const CollectiveCall& call, int world) {
  std::string text(collective_name(call.kind));
  text += " by " + std::string(algorithm_name(call.plan.algorithm)) + " of " +
          std::string(dtype_name(call.dtype)) + " " + std::string(reduce_op_name(call.op)) +
          ", world " + std::to_string(world) + ", root " + std::to_string(call.root) + ", counts";
  for (const std::size_t count : call.counts) text += " " + std::to_string(count);
  return text + (call.in_place ? ", in place" : "") + ", offset " + std::to_string(call.offset) +
         ", shifted " + std::to_string(call.shifted) + ", registered " +
         std::to_string(call.registered);
}

inline bool has_parts(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
}
inline bool reads_parts(CollectiveKind kind) {
  return kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
}
inline double factor_of(int rank) { return 0.25 * rank - 0.3; }

// Runs calls on a rig and compares.
class Checker {
 public:
  explicit Checker(DeviceRig& rig) : rig_(rig), world_(static_cast<std::size_t>(rig.world())) {}

  void run(const CollectiveCall& call) {
    SCOPED_TRACE(describe(call, rig_.world()));
    call_ = call;
    size_ = dtype_bytes(call.dtype);
    total_ = std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0});
    make_inputs();
    launch_all();
    rig_.finish();
    rig_.expect_healthy();
    for (std::size_t rank = 0; rank < world_; ++rank) compare(rank);
  }

 private:
  std::size_t input_count(std::size_t rank) const {
    return reads_parts(call_.kind) ? total_ : call_.counts[rank];
  }
  std::size_t output_count(std::size_t rank) const {
    return has_parts(call_.kind) && !reads_parts(call_.kind) ? total_ : call_.counts[rank];
  }
  std::size_t offset_of(std::size_t rank) const {
    return call_.offset + ((call_.shifted >> rank & 1) != 0 ? 4 : 0);
  }
  std::size_t share_begin(std::size_t rank) const {
    return std::accumulate(call_.counts.begin(),
                           call_.counts.begin() + static_cast<std::ptrdiff_t>(rank),
                           std::size_t{0});
  }
  // In place means what c10d means by it: the share of an output list, or the same tensor.
  std::size_t input_offset(std::size_t rank) const {
    const bool in_list =
        call_.kind == CollectiveKind::kAllGather || call_.kind == CollectiveKind::kGather;
    return in_list ? share_begin(rank) * size_ : 0;
  }

  void make_inputs() {
    inputs_.clear();
    in_.clear();
    out_.clear();
    for (std::size_t rank = 0; rank < world_; ++rank) {
      Bytes input(input_count(rank) * size_);
      for (std::byte& b : input) b = static_cast<std::byte>(random_() & 0xff);
      if (call_.dtype == Dtype::kBool) {
        for (std::byte& b : input) b &= std::byte{1};
      }
      inputs_.push_back(input);
      in_.push_back(std::make_unique<DeviceBytes>(input.size()));
      out_.push_back(std::make_unique<DeviceBytes>(output_count(rank) * size_));
      check(gpuMemset(out_[rank]->at(0), static_cast<int>(kPoison), out_[rank]->bytes() + 64),
            "Memset");
      std::byte* to = call_.in_place ? out_[rank]->at(offset_of(rank)) + input_offset(rank)
                                     : in_[rank]->at(offset_of(rank));
      check(gpuMemcpy(to, input.data(), input.size(), gpuMemcpyHostToDevice), "Memcpy");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
  }

  void launch_all() {
    if (call_.registered != 0) set_segment();
    for (std::size_t rank = 0; rank < world_; ++rank) {
      if (!(call_.root_last && static_cast<int>(rank) == call_.root)) launch(rank);
    }
    if (!call_.root_last) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    launch(static_cast<std::size_t>(call_.root));
  }
  void set_segment() {
    std::vector<std::byte*> bases;
    for (const auto& output : out_) bases.push_back(output->at(0));
    for (int rank = 0; rank < rig_.world(); ++rank) {
      rig_.kernels(rank).set_segment(kSegment, bases);
    }
  }

  void launch(std::size_t rank) {
    const int r = static_cast<int>(rank);
    std::byte* output = out_[rank]->at(offset_of(rank));
    std::byte* input =
        call_.in_place ? output + input_offset(rank) : in_[rank]->at(offset_of(rank));
    std::vector<Part> parts;
    for (std::size_t p = 0; p < world_ && has_parts(call_.kind); ++p) {
      std::byte* base = reads_parts(call_.kind) ? input : output;
      parts.push_back({base + share_begin(p) * size_, call_.counts[p]});
    }
    CollectiveArgs args;
    args.kind = call_.kind;
    args.dtype = call_.dtype;
    args.op = call_.op;
    args.root = call_.root;
    args.factor = factor_of(r);
    args.count = call_.counts[rank];
    if (!reads_parts(call_.kind)) args.input = input;
    if (!has_parts(call_.kind) || reads_parts(call_.kind)) args.output = output;
    if (reads_parts(call_.kind)) {
      args.input_parts = parts;
    } else {
      args.output_parts = parts;
    }
    LaunchOptions options = rig_.options(r);
    if ((call_.registered >> rank & 1) != 0) {
      options.output = {out_[rank]->at(0), out_[rank]->bytes() + 64,
                        BufferLocation{kSegment + 1} << kLocationShift};
    }
    rig_.kernels(r).launch(args, call_.plan, options);
  }

  Bytes reduced(std::size_t begin, std::size_t count) const {
    Bytes result(count * size_);
    std::vector<const void*> sources;
    std::vector<double> factors;
    for (std::size_t rank = 0; rank < world_; ++rank) {
      sources.push_back(inputs_[rank].data() + begin * size_);
      factors.push_back(factor_of(static_cast<int>(rank)));
    }
    if (count > 0) {
      reduce_kernels(call_.dtype, call_.op, Isa::kBaseline)
          .reduce(result.data(), sources.data(), static_cast<int>(world_), factors.data(),
                  static_cast<int>(world_), count);
    }
    return result;
  }

  // What rank's output must hold; nothing where it must stay as it was.
  Bytes expected(std::size_t rank) const {
    const auto root = static_cast<std::size_t>(call_.root);
    switch (call_.kind) {
      case CollectiveKind::kAllReduce:
        return reduced(0, call_.counts[rank]);
      case CollectiveKind::kReduce:
        return rank == root ? reduced(0, call_.counts[rank]) : Bytes{};
      case CollectiveKind::kReduceScatter:
        return reduced(share_begin(rank), call_.counts[rank]);
      case CollectiveKind::kBroadcast:
        return inputs_[root];
      case CollectiveKind::kScatter: {
        const std::byte* share = inputs_[root].data() + share_begin(rank) * size_;
        return Bytes(share, share + call_.counts[rank] * size_);
      }
      case CollectiveKind::kGather:
        if (rank != root) return {};
        break;
      default:
        break;
    }
    Bytes all;
    for (const Bytes& input : inputs_) all.insert(all.end(), input.begin(), input.end());
    return all;
  }

  void compare(std::size_t rank) {
    const DeviceBytes& out = *out_[rank];
    Bytes all(out.bytes() + 64);
    check(gpuMemcpy(all.data(), out.at(0), all.size(), gpuMemcpyDeviceToHost), "Memcpy");
    const Bytes want = expected(rank);
    const bool untouched = want.empty() && out.bytes() > 0;
    if (untouched && call_.in_place) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t begin = offset_of(rank);
      const bool inside = i >= begin && i < begin + want.size();
      const std::byte wanted = inside ? want[i - begin] : kPoison;
      ASSERT_EQ(static_cast<int>(all[i]), static_cast<int>(wanted))
          << "rank " << rank << ", byte " << i
          << (inside ? " of the output" : " outside the output");
    }
  }

  static constexpr int kSegment = 5;

  DeviceRig& rig_;
  std::size_t world_;
  std::mt19937 random_{12345};
  CollectiveCall call_;
  std::size_t size_ = 1;
  std::size_t total_ = 0;
  std::vector<Bytes> inputs_;
  std::vector<std::unique_ptr<DeviceBytes>> in_;
  std::vector<std::unique_ptr<DeviceBytes>> out_;
};

}  // namespace symm::test
