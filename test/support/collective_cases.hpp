// One rank's part of a collective with inputs that make a wrong rank, order or offset visible, and
// the check of what came out.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/core/collective.hpp"

namespace symm::test {

using Runner = std::function<void(const CollectiveArgs&)>;

// An all_reduce in place.
inline CollectiveArgs sum_args(std::vector<float>& data) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = Dtype::kFloat32;
  args.count = data.size();
  args.input = args.output = data.data();
  return args;
}

// Sums of these depend on the order in which they are added: all digits of a float, from -8 to 8.
inline float reduce_value(int rank, std::size_t index, int round) {
  auto bits = static_cast<std::uint32_t>(index * 64) + static_cast<std::uint32_t>(rank);
  bits = (bits + static_cast<std::uint32_t>(round) * 7919u) * 2654435761u;
  bits = (bits ^ (bits >> 15)) * 2246822519u;
  bits ^= bits >> 13;
  return static_cast<float>(bits) * 0x1p-28f - 8.0f;
}

inline float expected_sum(int world, std::size_t index, int round) {
  volatile float sum = reduce_value(0, index, round);
  for (int rank = 1; rank < world; ++rank) sum = sum + reduce_value(rank, index, round);
  return sum;
}

// Element `index` of what `from` sends to `to`.
inline std::int32_t move_value(int from, int to, std::size_t index, int round) {
  return static_cast<std::int32_t>(index * 2654435761u) ^
         ((from * 64 + to) * 1048583 + round * 7919);
}

inline constexpr std::int32_t kPoison = -77777777;

// The sum of element `index` over all ranks.
using ExpectedSum = std::function<float(std::size_t index, int round)>;

class CollectiveCase {
 public:
  CollectiveCase(int rank, int world, int round, Runner run, ExpectedSum expected = {})
      : rank_(rank),
        world_(world),
        round_(round),
        run_(std::move(run)),
        expected_(expected ? std::move(expected) : [world](std::size_t index, int of_round) {
          return expected_sum(world, index, of_round);
        }) {}

  void check(CollectiveKind kind, std::size_t count, int root) {
    SCOPED_TRACE(std::string(collective_name(kind)) + " count " + std::to_string(count) + " rank " +
                 std::to_string(rank_) + " of " + std::to_string(world_) + " root " +
                 std::to_string(root) + " round " + std::to_string(round_));
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce:
        return reduction(kind, count, root);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(count);
      case CollectiveKind::kBroadcast:
        return broadcast(count, root);
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather:
        return gather(kind, count, root);
      case CollectiveKind::kScatter:
        return scatter(count, root);
      case CollectiveKind::kAllToAll:
        return all_to_all(count);
      case CollectiveKind::kBarrier: {
        CollectiveArgs args;
        return run_(args);
      }
    }
  }

 private:
  using Ints = std::vector<std::int32_t>;

  CollectiveArgs args(CollectiveKind kind, std::size_t count, Dtype dtype, int root) const {
    CollectiveArgs args;
    args.kind = kind;
    args.dtype = dtype;
    args.count = count;
    args.root = root;
    return args;
  }

  Ints sent(int from, int to, std::size_t count) const {
    Ints values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = move_value(from, to, i, round_);
    return values;
  }

  static std::vector<Part> parts_of(std::vector<Ints>& lists) {
    std::vector<Part> parts;
    for (Ints& list : lists) parts.push_back({list.data(), list.size()});
    return parts;
  }

  void reduction(CollectiveKind kind, std::size_t count, int root) {
    std::vector<float> in(count);
    for (std::size_t i = 0; i < count; ++i) in[i] = reduce_value(rank_, i, round_);
    const std::vector<float> before = in;
    const bool in_place = round_ % 2 == 1;
    std::vector<float> separate(count, -1.0f);
    std::vector<float>& out = in_place ? in : separate;
    CollectiveArgs call = args(kind, count, Dtype::kFloat32, root);
    call.input = in.data();
    call.output = out.data();
    run_(call);
    if (kind == CollectiveKind::kAllReduce || rank_ == root) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], expected_(i, round_)) << "element " << i;
      }
    } else {
      ASSERT_EQ(in, before);
      if (!in_place) {
        ASSERT_EQ(separate, std::vector<float>(count, -1.0f));
      }
    }
  }

  void reduce_scatter(std::size_t count) {
    // Shares of different sizes: rank r's has count + r elements.
    std::vector<std::vector<float>> in(static_cast<std::size_t>(world_));
    std::vector<Part> parts;
    for (int to = 0; to < world_; ++to) {
      auto& share = in[static_cast<std::size_t>(to)];
      share.resize(count + static_cast<std::size_t>(to));
      for (std::size_t i = 0; i < share.size(); ++i) {
        share[i] = reduce_value(rank_, i + static_cast<std::size_t>(to) * 31, round_);
      }
      parts.push_back({share.data(), share.size()});
    }
    const std::size_t mine = count + static_cast<std::size_t>(rank_);
    std::vector<float> out(mine, -1.0f);
    CollectiveArgs call = args(CollectiveKind::kReduceScatter, mine, Dtype::kFloat32, 0);
    call.input_parts = parts;
    call.output = out.data();
    run_(call);
    for (std::size_t i = 0; i < mine; ++i) {
      ASSERT_EQ(out[i], expected_(i + static_cast<std::size_t>(rank_) * 31, round_));
    }
  }

  void broadcast(std::size_t count, int root) {
    Ints in = sent(root, 0, count);
    Ints out(count, kPoison);
    CollectiveArgs call = args(CollectiveKind::kBroadcast, count, Dtype::kInt32, root);
    call.input = in.data();
    call.output = out.data();
    run_(call);
    ASSERT_EQ(out, in);
  }

  void gather(CollectiveKind kind, std::size_t count, int root) {
    // all_gather: rank r's share has count + r elements.
    const bool uneven = kind == CollectiveKind::kAllGather;
    const auto size = [&](int r) { return count + (uneven ? static_cast<std::size_t>(r) : 0); };
    Ints in = sent(rank_, 0, size(rank_));
    std::vector<Ints> out;
    for (int r = 0; r < world_; ++r) out.emplace_back(size(r), kPoison);
    const std::vector<Part> parts = parts_of(out);
    CollectiveArgs call = args(kind, size(rank_), Dtype::kInt32, root);
    call.input = in.data();
    call.output_parts = parts;
    run_(call);
    for (int r = 0; r < world_; ++r) {
      const bool receives = kind == CollectiveKind::kAllGather || rank_ == root;
      ASSERT_EQ(out[static_cast<std::size_t>(r)],
                receives ? sent(r, 0, size(r)) : Ints(size(r), kPoison));
    }
  }

  void scatter(std::size_t count, int root) {
    std::vector<Ints> in;
    for (int to = 0; to < world_; ++to) in.push_back(sent(root, to, count));
    const std::vector<Part> parts = parts_of(in);
    Ints out(count, kPoison);
    CollectiveArgs call = args(CollectiveKind::kScatter, count, Dtype::kInt32, root);
    if (rank_ == root) call.input_parts = parts;
    call.output = out.data();
    run_(call);
    ASSERT_EQ(out, sent(root, rank_, count));
  }

  // Rank `from` sends count * ((from + 2 * to) % 3) elements to rank `to`, none to some.
  void all_to_all(std::size_t count) {
    const auto size = [&](int from, int to) {
      return count * static_cast<std::size_t>((from + 2 * to) % 3);
    };
    std::vector<Ints> in;
    std::vector<Ints> out;
    for (int r = 0; r < world_; ++r) {
      in.push_back(sent(rank_, r, size(rank_, r)));
      out.emplace_back(size(r, rank_), kPoison);
    }
    const std::vector<Part> in_parts = parts_of(in);
    const std::vector<Part> out_parts = parts_of(out);
    CollectiveArgs call = args(CollectiveKind::kAllToAll, 0, Dtype::kInt32, 0);
    call.input_parts = in_parts;
    call.output_parts = out_parts;
    run_(call);
    for (int r = 0; r < world_; ++r) {
      ASSERT_EQ(out[static_cast<std::size_t>(r)], sent(r, rank_, size(r, rank_)));
    }
  }

  int rank_;
  int world_;
  int round_;
  Runner run_;
  ExpectedSum expected_;
};

}  // namespace symm::test
