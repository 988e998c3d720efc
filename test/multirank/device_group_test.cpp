// The engine of a device over fake GPUs: exchange of segments, choice of algorithms,
// messages.
#include "backend/engine/device/device_group.hpp"

#include <gtest/gtest.h>

#include "test/support/device_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::device_config;
using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;
using test::ScopedVariable;
using test::sum_args;

class DeviceGroupTest : public test::DeviceRanksTest {};

TEST_F(DeviceGroupTest, FirstCollectiveMapsEveryPeersSegment) {
  run_group(3, [](DeviceRank& rank) {
    rank.engine();
    auto* own = reinterpret_cast<int*>(rank.kernels().peer(rank.number()));
    ASSERT_NE(own, nullptr);
    own[0] = 100 + rank.number();
    EXPECT_EQ(rank.kernels().peer((rank.number() + 1) % 3), nullptr);
    rank.launch(CollectiveArgs{});
    rank.meet();
    for (int peer = 0; peer < 3; ++peer) {
      ASSERT_NE(rank.kernels().peer(peer), nullptr);
      EXPECT_EQ(reinterpret_cast<int*>(rank.kernels().peer(peer))[0], 100 + peer);
    }
    EXPECT_EQ(rank.kernels().config().layout.total_bytes,
              DeviceLayout::of(3, 4u << 20).total_bytes);
    EXPECT_EQ(rank.kernels().config().most_blocks, 48);  // of the group's options
    EXPECT_EQ(&rank.engine(), rank.communicator.device_group_if_made());
    rank.meet();
  });
}

TEST_F(DeviceGroupTest, PlansFollowTheGpuTable) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> small(16);
    std::vector<float> large(4'000'000);
    rank.launch(sum_args(small), milliseconds(1234));
    rank.launch(sum_args(large));
    rank.communicator.run(CollectiveArgs{});  // the host's calls are counted apart
    rank.launch(CollectiveArgs{});
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 3u);
    EXPECT_EQ(launches[0].plan.algorithm, Algorithm::kLL);
    EXPECT_EQ(launches[0].timeout, milliseconds(1234));
    EXPECT_EQ(launches[1].plan, (Plan{Algorithm::kBulk, 0, 64}));
    EXPECT_EQ(launches[1].timeout, milliseconds(20'000));
    EXPECT_EQ(launches[2].kind, CollectiveKind::kBarrier);
    rank.engine().check();
  });
}

TEST_F(DeviceGroupTest, TheWireIsThatOfTheEnvironment) {
  for (const auto& [name, wire] :
       {std::pair<std::optional<std::string>, WireKind>{{}, WireKind::kLine},
        {"ll", WireKind::kLL},
        {"auto", WireKind::kLine},
        {"line", WireKind::kLine}}) {
    const ScopedVariable variable("SYMM_WIRE", name);
    run_group(3, [wire = wire](DeviceRank& rank) {
      rank.launch(CollectiveArgs{});
      EXPECT_EQ(rank.kernels().wire(), wire);
      rank.meet();
    });
  }
}

// As many blocks of lanes fit on a GPU, of all ranks that share it.
TEST_F(DeviceGroupTest, KernelsLearnHowManyRanksShareAGpu) {
  const auto expect_ranks_of_gpu = [this](int expected) {
    run_group(3, [expected](DeviceRank& rank) {
      rank.launch(CollectiveArgs{});
      EXPECT_EQ(rank.kernels().ranks_of_gpu(), expected);
      rank.meet();
    });
  };
  expect_ranks_of_gpu(1);
  gpus_[2].stand_for(0);
  expect_ranks_of_gpu(2);
  // A smaller one has room for as many blocks as it has multiprocessors.
  gpus_[1].have_multiprocessors(58);
  expect_ranks_of_gpu(3);
  gpus_[1].have_multiprocessors(64);
  gpus_[0].have_multiprocessors(24);
  gpus_[2].have_multiprocessors(24);
  expect_ranks_of_gpu(11);
  gpus_[0].have_multiprocessors(0);  // which no GPU says
  gpus_[2].have_multiprocessors(0);
  expect_ranks_of_gpu(128);
}

// Messages use them where their two ranks have them, also before the group has chosen a wire. One
// rank alone knows what is not linked.
TEST_F(DeviceGroupTest, MessagesUseLinesWhereTheirTwoRanksHaveThem) {
  gpus_[1].unlinked = 1u << 2;
  for (const std::string wire : {"auto", "ll", "line"}) {
    const ScopedVariable variable("SYMM_WIRE", wire);
    run_group(3, [&wire](DeviceRank& rank) {
      const int me = rank.number();
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == me) continue;
        const bool has_lines = me == 0 || peer == 0;
        const TransferOp op{nullptr, 0, 0, peer, true};
        const auto error = error_of([&] { rank.engine().transfer({&op, 1}, {}); });
        if (wire == "line" && !has_lines) {
          expect_error(error, ErrorCode::kUnsupported, {"SYMM_WIRE=line", "rank 1", "rank 2"});
          continue;
        }
        ASSERT_FALSE(error);
        EXPECT_EQ(rank.kernels().wire_of_messages(peer),
                  wire != "ll" && has_lines ? WireKind::kLine : WireKind::kLL);
      }
      rank.meet();
    });
  }
}

// One rank alone knows of it.
TEST_F(DeviceGroupTest, WithoutNvlinkBetweenTwoGpusNoRankUsesLines) {
  gpus_[1].unlinked = 1u << 2;
  {
    const ScopedVariable variable("SYMM_WIRE", "auto");
    run_group(3, [](DeviceRank& rank) {
      rank.launch(CollectiveArgs{});
      EXPECT_EQ(rank.kernels().wire(), WireKind::kLL);
      rank.meet();
    });
  }
  const ScopedVariable variable("SYMM_WIRE", "line");
  run_group(3, [](DeviceRank& rank) {
    for (int time = 0; time < 2; ++time) {
      expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kUnsupported,
                   {"SYMM_WIRE=line", "rank 1's cuda:1", "rank 2's cuda:2"});
    }
    rank.meet();
  });
}

// What a device does not have leaves the choice there to the table.
TEST_F(DeviceGroupTest, AForcedAlgorithmHoldsOnTheTargetsThatHaveIt) {
  for (const Algorithm forced : {Algorithm::kRing, Algorithm::kBulk}) {
    run_group(
        2,
        [forced](DeviceRank& rank) {
          std::vector<float> data(16, 1.0f);
          rank.launch(sum_args(data));
          rank.launch(CollectiveArgs{});
          const auto& launches = rank.kernels().launches();
          EXPECT_EQ(launches[0].plan.algorithm,
                    forced == Algorithm::kRing ? Algorithm::kLL : Algorithm::kBulk);
          EXPECT_EQ(launches[1].plan.algorithm, Algorithm::kLL);
          const Plan on_host = rank.communicator.plan(sum_args(data), {}, PlanTarget::kHost);
          EXPECT_EQ(on_host.algorithm,
                    forced == Algorithm::kRing ? Algorithm::kRing : Algorithm::kOneShot);
          rank.communicator.run(sum_args(data));
          EXPECT_EQ(data[0], 2.0f);
        },
        forced);
  }
}

TEST_F(DeviceGroupTest, AColdCallOnACapturedStreamIsRefusedAndHarmless) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    const StreamHandle captured = FakeGpu::captured_stream();
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(error_of([&] {
                     rank.engine().launch(sum_args(data), {captured, {}, true});
                   }),
                   ErrorCode::kUnsupported,
                   {"all_reduce", "has not used cuda:" + std::to_string(rank.number()),
                    "call once before capture"});
    }
    const TransferOp op{data.data(), 16, 5, 1 - rank.number(), rank.number() == 0};
    expect_error(error_of([&] {
                   rank.engine().transfer({&op, 1}, {captured, {}, true});
                 }),
                 ErrorCode::kUnsupported, {"call once before capture"});
    rank.launch(sum_args(data));
    rank.engine().launch(sum_args(data), {captured, {}, true});
    EXPECT_EQ(rank.kernels().launches().size(), 2u);
    EXPECT_FALSE(rank.communicator.failure().has_value());
  });
}

TEST_F(DeviceGroupTest, TheFlightRecordLearnsWhereTheDeviceCounts) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    const int peer = 1 - rank.number();
    const TransferOp first{data.data(), 16, 5, peer, rank.number() == 0};
    const TransferOp own{data.data(), 16, 5, rank.number(), true};
    const DevicePage& page = rank.engine().trace().own_page();
    rank.launch(sum_args(data));
    rank.launch(sum_args(data));
    const DeviceProgress second = rank.engine().last_collective();
    EXPECT_EQ(second.begun, &page.entered);
    EXPECT_EQ(second.ended, &page.completed);
    EXPECT_EQ(second.number, 2u);
    for (std::uint64_t number = 1; number < 3; ++number) {
      rank.engine().transfer({&first, 1}, {});
      const DeviceProgress message = rank.engine().last_message(first);
      EXPECT_EQ(message.number, number);
      EXPECT_GE(message.begun, &page.messages_entered[peer][0][0]);
      EXPECT_EQ(message.ended - &page.messages_completed[0][0][0],
                message.begun - &page.messages_entered[0][0][0]);
    }
    EXPECT_EQ(rank.engine().last_message(own).begun, nullptr);
    rank.engine().launch(sum_args(data), {FakeGpu::captured_stream(), {}, true});
    EXPECT_EQ(rank.engine().last_collective().begun, nullptr);
    EXPECT_EQ(rank.engine().last_message(first).begun, nullptr);
  });
}

TEST_F(DeviceGroupTest, AGroupUsesOneDeviceARank) {
  run_group(2, [](DeviceRank& rank) {
    rank.engine();
    const DeviceId other{DeviceKind::kCuda, 7};
    const std::string own = "cuda:" + std::to_string(rank.number());
    expect_error(error_of([&] { rank.communicator.device_group(other); }),
                 ErrorCode::kInvalidArgument, {own, "cuda:7"});
    GpuRuntime& seventh = device_library(DeviceKind::kCuda).runtime(7);
    expect_error(
        error_of([&] { rank.communicator.check_segment(*LocalSegment::allocate(seventh, 100)); }),
        ErrorCode::kInvalidArgument, {own, "cuda:7"});
    rank.launch(CollectiveArgs{});
  });
}

TEST_F(DeviceGroupTest, RefusesBadArgumentsBeforeAnythingIsPosted) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    CollectiveArgs args = sum_args(data);
    args.op = ReduceOp::kBand;
    expect_error(error_of([&] { rank.launch(args); }), ErrorCode::kUnsupported, {"BAND"});
    for (const int peer : {-1, 2}) {
      const TransferOp op{data.data(), 16, 0, peer, true};
      expect_error(error_of([&] {
                     rank.engine().transfer({&op, 1}, {FakeGpu::plain_stream()});
                   }),
                   ErrorCode::kInvalidArgument, {"send", "got " + std::to_string(peer)});
    }
    rank.launch(sum_args(data));
    EXPECT_EQ(rank.kernels().launches().size(), 1u);
  });
}

TEST_F(DeviceGroupTest, MessagesConnectTheTwoRanksAlone) {
  run_group(3, [](DeviceRank& rank) {
    std::vector<std::byte> data(64);
    if (rank.number() == 2) {
      rank.meet();
      EXPECT_EQ(rank.communicator.device_group_if_made(), nullptr);
    } else {
      const TransferOp ops[] = {{data.data(), 32, 1, 1 - rank.number(), true},
                                {nullptr, 0, 2, 1 - rank.number(), false}};
      rank.engine().transfer(ops, {FakeGpu::plain_stream(), milliseconds(7'777)});
      const auto& launches = rank.kernels().launches();
      ASSERT_EQ(launches.size(), 1u);
      EXPECT_FALSE(launches[0].collective);
      EXPECT_EQ(launches[0].timeout, milliseconds(7'777));
      ASSERT_EQ(launches[0].ops.size(), 2u);
      EXPECT_EQ(launches[0].ops[0].bytes, 32u);
      EXPECT_NE(rank.kernels().peer(1 - rank.number()), nullptr);
      EXPECT_EQ(rank.kernels().peer(2), nullptr);
      rank.engine().transfer(ops, {FakeGpu::captured_stream(), {}, true});
      rank.meet();
    }
    // A collective still finds everybody.
    rank.launch(CollectiveArgs{});
    EXPECT_NE(rank.kernels().peer(2), nullptr);
  });
}

// Ends of messages to oneself are wherever the caller put them; the kernels get them in pairs,
// behind the messages of others, which alone are counted and connected.
TEST_F(DeviceGroupTest, MessagesToOneselfArePairedByTag) {
  run_group(2, [](DeviceRank& rank) {
    const int me = rank.number();
    std::vector<std::byte> data(8);
    std::byte* const d = data.data();
    const TransferOp ops[] = {{d + 0, 1, 3, me, false},    {d + 1, 2, 5, me, true},
                              {d + 2, 4, 3, 1 - me, true}, {d + 3, 1, 3, me, true},
                              {d + 4, 0, 3, me, true},     {d + 5, 2, 5, me, false},
                              {d + 6, 0, 3, me, false},    {d + 7, 4, 3, 1 - me, false}};
    rank.engine().transfer(ops, {FakeGpu::plain_stream()});
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 1u);
    std::vector<std::ptrdiff_t> order;
    for (const TransferOp& op : launches[0].ops) {
      order.push_back(static_cast<std::byte*>(op.data) - d);
    }
    EXPECT_EQ(order, (std::vector<std::ptrdiff_t>{2, 7, 3, 0, 1, 5, 4, 6}));
    rank.engine().drain();
    EXPECT_FALSE(rank.communicator.failure().has_value());
    rank.meet();
  });
}

TEST_F(DeviceGroupTest, MessagesToOneselfNeedNobody) {
  run_group(2, [](DeviceRank& rank) {
    if (rank.number() == 1) {
      rank.meet();
      EXPECT_EQ(rank.communicator.device_group_if_made(), nullptr);
      return;
    }
    std::vector<std::byte> data(64);
    const TransferOp ops[] = {{data.data(), 32, 1, 0, true}, {data.data() + 32, 32, 1, 0, false}};
    rank.engine().transfer(ops, {FakeGpu::captured_stream(), {}, true});
    EXPECT_EQ(rank.kernels().launches().size(), 1u);
    EXPECT_EQ(rank.kernels().peer(1), nullptr);
    rank.meet();
  });
}

TEST_F(DeviceGroupTest, MessagesToOneselfThatCannotEndAreRefused) {
  run_group(2, [](DeviceRank& rank) {
    const int me = rank.number();
    std::vector<std::byte> data(64);
    const auto refused = [&](std::vector<TransferOp> ops) {
      ops.insert(ops.begin(), {data.data(), 8, 9, 1 - me, true});
      return error_of([&] { rank.engine().transfer(ops, {FakeGpu::plain_stream()}); });
    };
    expect_error(refused({{data.data(), 16, 7, me, true}}), ErrorCode::kInvalidArgument,
                 {"send to this rank itself", "tag 7", "16 bytes", "recv in the same batch"});
    expect_error(refused({{data.data(), 16, 7, me, false}, {data.data(), 16, 8, me, true}}),
                 ErrorCode::kInvalidArgument,
                 {"recv from this rank itself", "tag 7", "16 bytes", "send in the same batch"});
    const std::string self = "rank " + std::to_string(me);
    expect_error(refused({{data.data(), 17, 7, me, false}, {data.data(), 16, 7, me, true}}),
                 ErrorCode::kMismatch, {"tag 7", self + " sends 16 bytes", self + " receives 17"});
    rank.launch(CollectiveArgs{});
    EXPECT_EQ(rank.kernels().launches().size(), 1u);
    EXPECT_FALSE(rank.communicator.failure().has_value());
  });
}

TEST_F(DeviceGroupTest, AllToAllSendsEmptyAndOwnSharesAsWell) {
  run_group(3, [](DeviceRank& rank) {
    std::vector<std::int32_t> in(6);
    std::vector<std::int32_t> out(6);
    std::vector<Part> in_parts;
    std::vector<Part> out_parts;
    for (std::size_t r = 0; r < 3; ++r) {
      const std::size_t count = static_cast<int>(r) == rank.number() ? 2 : r == 0 ? 0 : 1;
      in_parts.push_back({in.data() + 2 * r, count});
      const bool from_zero = rank.number() == 0;
      const std::size_t back = static_cast<int>(r) == rank.number() ? 2 : from_zero ? 0 : 1;
      out_parts.push_back({out.data() + 2 * r, back});
    }
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kInt32;
    args.input_parts = in_parts;
    args.output_parts = out_parts;
    rank.launch(args);
    const test::FakeLaunch& launch = rank.kernels().launches().at(0);
    EXPECT_EQ(launch.kind, CollectiveKind::kAllToAll);
    ASSERT_EQ(launch.sent.size(), 3u);
    ASSERT_EQ(launch.taken.size(), 3u);
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(launch.sent[r].data, in_parts[r].data);
      EXPECT_EQ(launch.sent[r].count, in_parts[r].count);
      EXPECT_EQ(launch.taken[r].data, out_parts[r].data);
      EXPECT_EQ(launch.taken[r].count, out_parts[r].count);
    }
  });
}

TEST_F(DeviceGroupTest, AGroupOfOneNeedsNoPeer) {
  run_group(1, [](DeviceRank& rank) {
    std::vector<float> data(4, 1.0f);
    rank.engine().launch(sum_args(data), {FakeGpu::captured_stream(), {}, true});
    rank.engine().connect_all({});
    rank.launch(CollectiveArgs{});
    EXPECT_EQ(rank.kernels().launches().size(), 2u);
    rank.communicator.abort("enough");
    EXPECT_TRUE(rank.kernels().told_to_leave());
  });
}

TEST(DeviceSettings, BlocksMustAgreeAndFit) {
  test::MemoryStore store;
  CommunicatorConfig bad = device_config(0, 1, Algorithm::kAuto);
  for (const int blocks : {0, -1, 65}) {
    bad.max_device_blocks = blocks;
    expect_error(error_of([&] { Communicator(store, bad); }), ErrorCode::kInvalidArgument,
                 {"max_device_blocks", "1 to 64", "got " + std::to_string(blocks)});
  }
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    CommunicatorConfig config = device_config(rank, 2, Algorithm::kAuto);
    if (rank == 1) config.max_device_blocks = 8;
    const Communicator one(store, config);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kInvalidArgument,
                 {"max_device_blocks", "48 on rank 0", "8 on rank 1"});
  }
}

TEST(DeviceSettings, WorkspacesMustAgreeAndFit) {
  test::MemoryStore store;
  CommunicatorConfig bad = device_config(0, 1, Algorithm::kAuto);
  for (const std::size_t bytes : {std::size_t{1} << 20, (std::size_t{4} << 20) + 1,
                                  (std::size_t{4} << 30) + (std::size_t{1} << 20)}) {
    bad.device_workspace_bytes = bytes;
    expect_error(error_of([&] { Communicator(store, bad); }), ErrorCode::kInvalidArgument,
                 {"device_workspace_bytes", "got " + std::to_string(bytes)});
  }
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    CommunicatorConfig config = device_config(rank, 2, Algorithm::kAuto);
    if (rank == 1) config.device_workspace_bytes = 5u << 20;
    const Communicator one(store, config);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kInvalidArgument,
                 {"device_workspace_bytes", "4194304 on rank 0", "5242880 on rank 1"});
  }
}

}  // namespace
}  // namespace symm
