// all_to_all whose senders have their shares in symmetric memory: read there, by ranks that do and
// by ranks that do not themselves. Ranks are threads.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{8} << 20;

std::uint8_t byte_of(int from, int to, std::size_t position) {
  return static_cast<std::uint8_t>(position * 31 + position / 251 +
                                   static_cast<std::size_t>(from * 89 + to * 53));
}

// The bytes that each rank sends to each.
using Matrix = std::vector<std::vector<std::size_t>>;

// All ranks of `in_place` have their inputs in symmetric memory, one after the other with gaps of
// other sizes between them.
void exchange(Communicator& communicator, const Segment& segment, const Matrix& sizes,
              const std::vector<bool>& in_place) {
  const int me = communicator.rank();
  const auto world = static_cast<std::size_t>(communicator.world_size());
  std::vector<std::vector<std::uint8_t>> ordinary(world);
  std::vector<std::vector<std::uint8_t>> received(world);
  std::vector<Part> inputs;
  std::vector<Part> outputs;
  auto* place = reinterpret_cast<std::uint8_t*>(segment.base(me));
  for (std::size_t peer = 0; peer < world; ++peer) {
    const std::size_t bytes = sizes[static_cast<std::size_t>(me)][peer];
    std::uint8_t* data = place;
    if (in_place[static_cast<std::size_t>(me)]) {
      place += bytes + 3 * peer + 1;
    } else {
      ordinary[peer].resize(bytes);
      data = ordinary[peer].data();
    }
    for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_of(me, static_cast<int>(peer), i);
    inputs.push_back({data, bytes});
    received[peer].resize(sizes[peer][static_cast<std::size_t>(me)]);
    outputs.push_back({received[peer].data(), received[peer].size()});
  }
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllToAll;
  args.dtype = Dtype::kUInt8;
  args.input_parts = inputs;
  args.output_parts = outputs;
  communicator.run(args);
  for (std::size_t peer = 0; peer < world; ++peer) {
    // Behind the call the memory is this rank's again.
    for (std::size_t i = 0; i < inputs[peer].count; ++i) {
      static_cast<std::uint8_t*>(const_cast<void*>(inputs[peer].data))[i] = 0;
    }
  }
  for (std::size_t peer = 0; peer < world; ++peer) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < received[peer].size(); ++i) {
      wrong += received[peer][i] != byte_of(static_cast<int>(peer), me, i);
    }
    EXPECT_EQ(wrong, 0u) << "rank " << me << " from " << peer;
  }
}

class SymmetricShares : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(Communicator&, const Segment&)>& body) {
    test::MemoryStore store;
    test::run_ranks(GetParam(), [&](int rank) {
      CommunicatorConfig config;
      config.group_name = "test";
      config.rank = rank;
      config.world_size = GetParam();
      config.timeout = std::chrono::milliseconds(20'000);
      Communicator communicator(store, config);
      const auto segment =
          test::join_segment(communicator, LocalSegment::allocate(host_runtime(), kSegmentBytes));
      body(communicator, *segment);
    });
  }
};

// Sizes from nothing to several chunks, every set of ranks in place by turns.
TEST_P(SymmetricShares, OfAnySizesOnAnyRanks) {
  const auto world = static_cast<std::size_t>(GetParam());
  run([world](Communicator& communicator, const Segment& segment) {
    std::mt19937 random(7);  // the same on every rank
    const std::vector<std::size_t> sizes = {0, 1, 100, 20'000, 65'536, 70'001, 600'000};
    for (unsigned set = 0; set < (1u << world); ++set) {
      std::vector<bool> in_place;
      Matrix matrix(world);
      for (std::size_t from = 0; from < world; ++from) {
        in_place.push_back((set >> from & 1u) != 0);
        for (std::size_t to = 0; to < world; ++to) {
          matrix[from].push_back(sizes[random() % sizes.size()]);
        }
      }
      exchange(communicator, segment, matrix, in_place);
    }
  });
}

TEST_P(SymmetricShares, NeedNoWorkspace) {
  const auto world = static_cast<std::size_t>(GetParam());
  run([world](Communicator& communicator, const Segment& segment) {
    const Matrix matrix(world, std::vector<std::size_t>(world, 1'000'000));
    for (int round = 0; round < 3; ++round) {
      exchange(communicator, segment, matrix, std::vector<bool>(world, true));
    }
    EXPECT_EQ(communicator.memory_use().suspendable_bytes, 0u);
    exchange(communicator, segment, matrix, std::vector<bool>(world, false));
    EXPECT_GT(communicator.memory_use().suspendable_bytes, 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SymmetricShares, testing::Values(2, 3, 4));

}  // namespace
}  // namespace symm
