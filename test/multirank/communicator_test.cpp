// Collectives through a whole communicator: bootstrap, shared memory, plans, failures. Ranks are
// threads; the memory is mapped once for each of them, as between processes.
#include "backend/engine/communicator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <latch>
#include <thread>

#include "backend/engine/host/mailbox_engine.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::expect_error;
using test::sum_args;

CommunicatorConfig config_of(int rank, int world, Algorithm algorithm = Algorithm::kAuto) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = milliseconds(20'000);
  config.algorithm = algorithm;
  return config;
}

// Calls body(communicator) on every rank.
void run_group(int world, const std::function<void(Communicator&)>& body,
               Algorithm algorithm = Algorithm::kAuto) {
  test::MemoryStore store;
  test::run_ranks(world, [&](int rank) {
    const auto communicator =
        std::make_unique<Communicator>(store, config_of(rank, world, algorithm));
    body(*communicator);
  });
}

std::vector<std::optional<Error>> errors_in_group(int world,
                                                  const std::function<void(Communicator&)>& body) {
  test::MemoryStore store;
  return test::errors_of_ranks(world, [&](int rank) {
    const auto communicator = std::make_unique<Communicator>(store, config_of(rank, world));
    body(*communicator);
  });
}

class CommunicatorTest : public testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, RunsEveryCollectiveAtEverySize) {
  run_group(GetParam(), [](Communicator& communicator) {
    int round = 0;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1027},
                                    std::size_t{70'001}, std::size_t{600'011}}) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        test::CollectiveCase one(communicator.rank(), communicator.world_size(), ++round,
                                 [&](const CollectiveArgs& args) { communicator.run(args); });
        one.check(static_cast<CollectiveKind>(kind), count, round % communicator.world_size());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest, testing::Values(1, 2, 3, 4, 8));

TEST(Communicator, GivesTheSameBitsByEveryAlgorithm) {
  for (const Algorithm algorithm :
       {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kPipelined}) {
    run_group(
        5,
        [](Communicator& communicator) {
          int round = 0;
          for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduce,
                                            CollectiveKind::kReduceScatter}) {
            for (const std::size_t count : {std::size_t{3}, std::size_t{300'007}}) {
              test::CollectiveCase one(communicator.rank(), 5, ++round,
                                       [&](const CollectiveArgs& args) { communicator.run(args); });
              one.check(kind, count, 3);
            }
          }
        },
        algorithm);
  }
}

TEST(Communicator, NamesBothSidesOfDifferentCalls) {
  const auto errors = errors_in_group(3, [](Communicator& communicator) {
    std::vector<float> data(communicator.rank() == 1 ? 5 : 4);
    communicator.run(sum_args(data));
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch,
                 {"seq 1", "rank 1", "all_reduce", "count 5", "count 4"});
  }
}

TEST(Communicator, NoticesDifferentRootsAtTheNextCall) {
  const auto errors = errors_in_group(2, [](Communicator& communicator) {
    std::int32_t value = communicator.rank();
    CollectiveArgs args;
    args.kind = CollectiveKind::kBroadcast;
    args.dtype = Dtype::kInt32;
    args.count = 1;
    args.root = communicator.rank();
    args.input = args.output = &value;
    communicator.run(args);
    communicator.run(CollectiveArgs{});
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch, {"seq 1", "broadcast", "root 0", "root 1"});
  }
}

TEST(Communicator, NamesWhoDidNotArrive) {
  test::MemoryStore store;
  std::latch others_gave_up(2);
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    const auto communicator = std::make_unique<Communicator>(store, config_of(rank, 3));
    communicator->run(CollectiveArgs{});
    std::vector<float> data(8);
    if (rank == 2) {
      others_gave_up.wait();
      communicator->run(sum_args(data));
    }
    const auto error =
        test::error_of([&] { communicator->run(sum_args(data), milliseconds(1'000)); });
    others_gave_up.count_down();
    if (error) throw *error;
  });
  expect_error(errors[0], ErrorCode::kTimeout,
               {"all_reduce", "seq 2", "not arrived: rank 2", "barrier seq 1, completed"});
  expect_error(errors[1], ErrorCode::kTimeout, {"seq 2", "rank 2"});
  expect_error(errors[2], ErrorCode::kTimeout, {"gave up", "rank 2"});
}

// The workspace is made by the first large call, whose ranks may come as late as its time-out says.
TEST(Communicator, TheFirstLargeCallHasATimeOutOfItsOwn) {
  test::MemoryStore store;
  test::run_ranks(2, [&](int rank) {
    CommunicatorConfig config = config_of(rank, 2);
    config.timeout = milliseconds(400);
    Communicator communicator(store, config);
    std::vector<float> data(std::size_t{1} << 20, 1.0f);
    if (rank == 1) std::this_thread::sleep_for(milliseconds(900));
    communicator.run(sum_args(data), milliseconds(20'000));
    EXPECT_EQ(data.back(), 2.0f);
  });
}

TEST(Communicator, ARankThatLeavesIsNamed) {
  const auto errors = errors_in_group(3, [](Communicator& communicator) {
    communicator.run(CollectiveArgs{});
    if (communicator.rank() == 0) return;
    std::vector<float> data(4);
    communicator.run(sum_args(data));
  });
  EXPECT_FALSE(errors[0].has_value());
  expect_error(errors[1], ErrorCode::kPeerLeft, {"rank 0", "seq 2", "all_reduce"});
  expect_error(errors[2], ErrorCode::kPeerLeft, {"rank 0", "seq 2", "all_reduce"});
}

TEST(Communicator, AbortOnOneRankEndsTheOthers) {
  const auto errors = errors_in_group(3, [](Communicator& communicator) {
    if (communicator.rank() == 1) {
      communicator.abort("enough");
    }
    communicator.run(CollectiveArgs{});
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kAborted, {"aborted: enough", "rank 1"});
  }
}

TEST(Communicator, RefusesBadArgumentsAndGoesOn) {
  run_group(2, [](Communicator& communicator) {
    std::vector<float> data(4, 1.0f + static_cast<float>(communicator.rank()));
    CollectiveArgs args = sum_args(data);
    args.op = ReduceOp::kBand;
    expect_error(test::error_of([&] { communicator.run(args); }), ErrorCode::kUnsupported,
                 {"BAND", "float32"});
    args = sum_args(data);
    args.kind = CollectiveKind::kBroadcast;
    args.root = 2;
    expect_error(test::error_of([&] { communicator.run(args); }), ErrorCode::kInvalidArgument,
                 {"root", "got 2"});
    communicator.run(sum_args(data));
    EXPECT_EQ(data, std::vector<float>(4, 3.0f));
  });
}

TEST(Communicator, ReadsRendezvousedMemoryInPlace) {
  run_group(4, [](Communicator& communicator) {
    const int world = communicator.world_size();
    constexpr std::size_t kCount = 500'003;
    auto local = LocalSegment::allocate(host_runtime(), (kCount + 9) * sizeof(float));
    auto* in = reinterpret_cast<float*>(local->base()) + 7;
    const auto segment = test::join_segment(communicator, local);
    ASSERT_EQ(segment->world_size(), world);
    for (int round = 0; round < 3; ++round) {
      // Only even ranks bring symmetric memory: readers follow what each owner says.
      std::vector<float> plain(kCount);
      float* data = communicator.rank() % 2 == 0 ? in : plain.data();
      for (std::size_t i = 0; i < kCount; ++i) {
        data[i] = test::reduce_value(communicator.rank(), i, round);
      }
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllReduce;
      args.dtype = Dtype::kFloat32;
      args.count = kCount;
      args.input = args.output = data;
      communicator.run(args);
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(data[i], test::expected_sum(world, i, round)) << i;
      }
      std::vector<float> all(kCount * 4);
      std::vector<Part> parts;
      for (std::size_t r = 0; r < 4; ++r) parts.push_back({all.data() + r * kCount, kCount});
      for (std::size_t i = 0; i < kCount; ++i) data[i] += static_cast<float>(communicator.rank());
      args.kind = CollectiveKind::kAllGather;
      args.output_parts = parts;
      communicator.run(args);
      // The call has returned, so no peer reads the input any more.
      std::fill_n(data, kCount, -1.0f);
      communicator.run(CollectiveArgs{});
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i],
                  test::expected_sum(world, i % kCount, round) + static_cast<float>(i / kCount));
      }
    }
  });
}

// How the ranks that wait for a late one end their call.
enum class Ending { kTimeOut, kAbort, kLeave };

class LateRank : public testing::TestWithParam<std::tuple<CollectiveKind, Ending>> {};

// Ranks 0 and 1 pass symmetric memory, give up, and use it again before rank 2 comes.
TEST_P(LateRank, DoesNotTakeMemoryThatIsInUseAgainForData) {
  const auto [kind, ending] = GetParam();
  constexpr int kWorld = 3;
  constexpr std::size_t kCount = 1000;
  constexpr float kUsedAgain = 4711.0f;
  const bool to_root = kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather;
  std::latch given_up(kWorld - 1);
  std::latch over(kWorld);
  test::MemoryStore store;
  const auto errors = test::errors_of_ranks(kWorld, [&, kind = kind, ending = ending](int rank) {
    const auto communicator = std::make_unique<Communicator>(store, config_of(rank, kWorld));
    const auto local = LocalSegment::allocate(host_runtime(), kWorld * kCount * sizeof(float));
    auto* const memory = reinterpret_cast<float*>(local->base());
    const auto segment = test::join_segment(*communicator, local);
    std::fill_n(memory, kWorld * kCount, 1.0f);
    std::vector<float> output(kWorld * kCount, -1.0f);
    std::vector<Part> in_parts;
    std::vector<Part> out_parts;
    for (std::size_t r = 0; r < kWorld; ++r) {
      in_parts.push_back({memory + r * kCount, kCount});
      out_parts.push_back({output.data() + r * kCount, kCount});
    }
    CollectiveArgs args;
    args.kind = kind;
    args.dtype = Dtype::kFloat32;
    args.count = kCount;
    args.root = to_root ? 2 : 0;
    args.input = memory;
    args.output = output.data();
    if (kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter) {
      args.input_parts = in_parts;
    }
    if (kind == CollectiveKind::kGather || kind == CollectiveKind::kAllGather) {
      args.output_parts = out_parts;
    }
    communicator->run(CollectiveArgs{});
    if (rank == 2) {
      given_up.wait();
      const auto error = test::error_of([&] { communicator->run(args); });
      over.count_down();
      if (error) throw *error;
      return;
    }
    std::thread ends([&] {
      if (ending == Ending::kTimeOut) return;
      std::this_thread::sleep_for(milliseconds(50));
      if (ending == Ending::kAbort) communicator->abort("enough");
      if (ending == Ending::kLeave) communicator->shutdown();
    });
    const auto error = test::error_of(
        [&] { communicator->run(args, milliseconds(ending == Ending::kTimeOut ? 100 : 20'000)); });
    ends.join();
    std::fill_n(memory, kWorld * kCount, kUsedAgain);
    given_up.count_down();
    over.arrive_and_wait();
    if (error) throw *error;
  });
  EXPECT_TRUE(errors[0].has_value());
  const ErrorCode expected = ending == Ending::kTimeOut ? ErrorCode::kTimeout
                             : ending == Ending::kAbort ? ErrorCode::kAborted
                                                        : ErrorCode::kPeerLeft;
  expect_error(errors[2], expected,
               {ending == Ending::kLeave ? "has left the group" : "gave up", "seq 2"});
}

std::string late_name(const testing::TestParamInfo<LateRank::ParamType>& info) {
  constexpr std::array kEndings{"TimeOut", "Abort", "Leave"};
  return std::string(collective_name(std::get<0>(info.param))) + "_" +
         kEndings[static_cast<std::size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Communicator, LateRank,
    testing::Combine(testing::Values(CollectiveKind::kBroadcast, CollectiveKind::kScatter,
                                     CollectiveKind::kReduce, CollectiveKind::kGather,
                                     CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                     CollectiveKind::kReduceScatter),
                     testing::Values(Ending::kTimeOut, Ending::kAbort, Ending::kLeave)),
    late_name);

TEST(Communicator, SendsAndReceivesByTag) {
  run_group(3, [](Communicator& communicator) {
    MailboxEngine& p2p = communicator.point_to_point();
    const int me = communicator.rank();
    const std::vector<std::size_t> sizes = {0, 1, 480, 481, 3'000'001};
    std::vector<std::vector<std::uint8_t>> out;
    std::vector<std::vector<std::uint8_t>> in;
    std::vector<std::shared_ptr<Transfer>> transfers;
    out.reserve(64);
    in.reserve(64);
    const auto value = [](int from, int to, std::size_t size, std::size_t i) {
      return static_cast<std::uint8_t>(i * 31 + size + static_cast<std::size_t>(from * 5 + to));
    };
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == me) continue;
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        out.emplace_back(sizes[k]);
        for (std::size_t i = 0; i < sizes[k]; ++i) out.back()[i] = value(me, peer, sizes[k], i);
        transfers.push_back(p2p.start(
            {{out.back().data(), sizes[k], static_cast<std::int64_t>(k), peer, true}, {}}, {}));
      }
    }
    std::vector<std::pair<int, std::size_t>> order;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == me) continue;
      for (std::size_t k = sizes.size(); k-- > 0;) {  // not the order of the sends
        in.emplace_back(sizes[k], std::uint8_t{0xee});
        order.emplace_back(peer, sizes[k]);
        transfers.push_back(p2p.start(
            {{in.back().data(), sizes[k], static_cast<std::int64_t>(k), peer, false}, {}}, {}));
      }
    }
    for (const auto& transfer : transfers) p2p.wait(*transfer, {});
    for (std::size_t n = 0; n < in.size(); ++n) {
      for (std::size_t i = 0; i < in[n].size(); ++i) {
        ASSERT_EQ(in[n][i], value(order[n].first, me, order[n].second, i));
      }
    }
  });
}

TEST(Communicator, ReceivesFromAnySourceInTheBackground) {
  run_group(4, [](Communicator& communicator) {
    MailboxEngine& p2p = communicator.point_to_point();
    p2p.progress_in_background();
    std::vector<int> values(100'000, communicator.rank());
    if (communicator.rank() != 0) {
      const auto send = p2p.start({{values.data(), values.size() * 4, 9, 0, true}, {}}, {});
      while (!send->done()) std::this_thread::yield();
      EXPECT_FALSE(send->error().has_value());
      return;
    }
    std::vector<bool> seen(4, false);
    for (int n = 0; n < 3; ++n) {
      std::atomic<bool> called{false};
      const auto recv = p2p.start(
          {{values.data(), values.size() * 4, 9, kAnySource, false}, [&] { called = true; }}, {});
      while (!called) std::this_thread::yield();
      ASSERT_TRUE(recv->done());
      ASSERT_EQ(values, std::vector<int>(values.size(), recv->peer()));
      ASSERT_FALSE(seen[static_cast<std::size_t>(recv->peer())]);
      seen[static_cast<std::size_t>(recv->peer())] = true;
    }
  });
}

TEST(Communicator, ARecvOfAnotherSizeIsAnErrorOnBothSidesAndTheGroupGoesOn) {
  run_group(2, [](Communicator& communicator) {
    MailboxEngine& p2p = communicator.point_to_point();
    std::vector<std::uint8_t> data(5000);
    const bool sends = communicator.rank() == 0;
    const auto transfer = sends ? p2p.start({{data.data(), 4000, 0, 1, true}, {}}, {})
                                : p2p.start({{data.data(), 5000, 0, 0, false}, {}}, {});
    expect_error(test::error_of([&] { p2p.wait(*transfer, {}); }), ErrorCode::kMismatch,
                 {"4000", "5000", "rank 0", "rank 1"});
    std::vector<float> one(1, 1.0f);
    communicator.run(sum_args(one));
    EXPECT_EQ(one[0], 2.0f);
  });
}

TEST(Communicator, ATransferThatCannotEndTimesOut) {
  const auto errors = errors_in_group(2, [](Communicator& communicator) {
    MailboxEngine& p2p = communicator.point_to_point();
    std::uint8_t byte = 0;
    if (communicator.rank() == 0) {
      p2p.wait(*p2p.start({{&byte, 1, 3, 1, false}, {}}, milliseconds(200)), {});
    } else {
      p2p.wait(*p2p.start({{&byte, 1, 4, 0, false}, {}}, {}), {});
    }
  });
  expect_error(errors[0], ErrorCode::kTimeout, {"recv from rank 1", "tag 3", "Timed out"});
  expect_error(errors[1], ErrorCode::kTimeout, {"rank 0 gave up"});
}

}  // namespace
}  // namespace symm
