// Collectives over several hosts: ranks are threads, hosts are communicators of their own, the link
// between them is memory.
#include "backend/engine/hosts/host_collectives.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/legs/cpu_space.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_link.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{20'000};

// "aab": ranks 0 and 1 are on host a, rank 2 on host b.
HostLayout layout_of(const std::string& hosts) {
  std::vector<std::string> ids;
  for (const char host : hosts) ids.emplace_back(1, host);
  return HostLayout(ids);
}

// What a space has of a GPU's, by which the algorithms choose; its memory is the CPU's.
enum class Space {
  kCpu,
  kAnyMemory,  // the link takes any memory
  kStream,     // no heads, and the link takes any memory
  kOwnMemory,  // no heads, and the link takes its own memory alone
};

class LikeStream final : public LegSpace {
 public:
  LikeStream(Communicator& local, HostLink& link, Space space)
      : space_(local, link), kind_(space) {}

  std::span<std::byte> allocate(std::size_t bytes) override { return space_.allocate(bytes); }
  bool takes_any_memory() const override { return kind_ == Space::kStream; }
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override {
    return space_.start(to, from, call);
  }
  bool is_on_cpu() const override { return false; }
  void run_local(const CollectiveArgs& args, milliseconds timeout) override {
    space_.run_local(args, timeout);
  }
  void fold(const FoldCall& call) override { space_.fold(call); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    space_.copy(to, from, bytes);
  }
  void abort() noexcept override { space_.abort(); }

 private:
  CpuSpace space_;
  const Space kind_;
};

class Hosts {
 public:
  Hosts(const std::string& hosts, const HostLimits& limits, Space space = Space::kCpu,
        bool hands_over = false)
      : layout_(layout_of(hosts)),
        limits_(limits),
        space_(space),
        stores_(layout_.members.size()),
        network_(hands_over) {}

  int world_size() const { return layout_.world_size(); }
  const HostLayout& layout() const { return layout_; }
  test::MemoryNetwork& network() { return network_; }
  void clear_late(int rank) { CallWatch::clear(*late_, layout_, rank); }

  std::vector<std::optional<Error>> errors(const std::function<void(int, HostCollectives&)>& body) {
    return test::errors_of_ranks(world_size(), [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      const auto host = static_cast<std::size_t>(layout_.host_of[r]);
      CommunicatorConfig config;
      config.group_name = "host " + layout_.names[host];
      config.rank = layout_.local_of[r];
      config.world_size = static_cast<int>(layout_.members[host].size());
      config.timeout = kTimeout;
      Communicator local(stores_[host], config);
      test::MemoryLink link(network_, rank,
                            space_ == Space::kAnyMemory || space_ == Space::kStream);
      CpuSpace on_cpu(local, link);
      LikeStream on_stream(local, link, space_);
      LegSpace& space = space_ == Space::kCpu || space_ == Space::kAnyMemory
                            ? static_cast<LegSpace&>(on_cpu)
                            : on_stream;
      HostCollectives collectives("g", layout_, rank, RankNames(), local, space, limits_, late_);
      body(rank, collectives);
    });
  }

  void run(const std::function<void(int, HostCollectives&)>& body) {
    for (const auto& error : errors(body)) {
      if (error) throw *error;
    }
    EXPECT_TRUE(network_.is_empty());
  }

  // In rank order inside each host, then in the order of the hosts.
  float expected_sum(std::size_t index, int round) const {
    volatile float total = 0;
    for (std::size_t host = 0; host < layout_.members.size(); ++host) {
      const std::vector<int>& ranks = layout_.members[host];
      volatile float sum = test::reduce_value(ranks[0], index, round);
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        sum = sum + test::reduce_value(ranks[i], index, round);
      }
      total = host == 0 ? sum : total + sum;
    }
    return total;
  }

 private:
  const HostLayout layout_;
  const HostLimits limits_;
  const Space space_;
  std::vector<test::MemoryStore> stores_;
  const std::shared_ptr<test::MemoryStore> late_ = std::make_shared<test::MemoryStore>();
  test::MemoryNetwork network_;
};

// Small enough for several chunks, and for every way through the code, at a few thousand elements.
constexpr HostLimits kSmallLimits{.leader_bytes = 10'000,
                                  .leader_pair_bytes = 5'000,
                                  .leader_broadcast_bytes = 10'000,
                                  .share_bytes = 4'096,
                                  .whole_shares = 600,
                                  .message_bytes = 50'000};

void run_every_collective(Hosts& hosts) {
  hosts.run([&](int rank, HostCollectives& collectives) {
    int round = 0;
    for (const std::size_t count : {0, 1, 5, 500, 2'400, 3'001, 40'007}) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        test::CollectiveCase one(
            rank, hosts.world_size(), ++round,
            [&](const CollectiveArgs& args) { collectives.run(args, kTimeout); },
            [&](std::size_t index, int of_round) { return hosts.expected_sum(index, of_round); });
        one.check(static_cast<CollectiveKind>(kind), count, round % hosts.world_size());
      }
    }
  });
}

class HostCollectivesTest : public testing::TestWithParam<const char*> {};

TEST_P(HostCollectivesTest, RunsEveryCollectiveAtEverySize) {
  Hosts hosts(GetParam(), kSmallLimits);
  run_every_collective(hosts);
}

TEST_P(HostCollectivesTest, RunsEveryCollectiveOverALinkThatTakesAnyMemory) {
  Hosts hosts(GetParam(), kSmallLimits, Space::kAnyMemory);
  run_every_collective(hosts);
}

// As over NCCL, and as through the CPU's memory.
TEST_P(HostCollectivesTest, RunsEveryCollectiveAsOnStreams) {
  for (const Space space : {Space::kStream, Space::kOwnMemory}) {
    for (const std::size_t leader_bytes : {std::size_t{0}, kSmallLimits.leader_bytes}) {
      HostLimits limits = kSmallLimits;
      limits.leader_bytes = limits.leader_broadcast_bytes = leader_bytes;
      Hosts hosts(GetParam(), limits, space);
      run_every_collective(hosts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, HostCollectivesTest,
                         testing::Values("ab", "aabb", "aab", "abb", "abab", "abba", "abc",
                                         "aabbcc", "aabbbc", "abcabd"));

// The formulas of docs/many_hosts.md, on 3 hosts of 2 ranks: bytes between hosts of all ranks.
TEST(HostCollectives, SendsTheBytesOfTheFormulas) {
  constexpr std::size_t kCount = 48'000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  constexpr std::size_t kHosts = 3;
  constexpr std::size_t kRanks = 6;
  const auto bytes_in = [&](Space space, CollectiveKind kind) {
    Hosts hosts("aabbcc", kSmallLimits, space);
    hosts.run([&](int rank, HostCollectives& collectives) {
      std::vector<float> mine(kCount, 1.0f);
      std::vector<float> all(kCount * kRanks);
      std::vector<Part> parts;
      CollectiveArgs args;
      args.kind = kind;
      args.dtype = Dtype::kFloat32;
      args.count = kCount;
      args.input = args.output = mine.data();
      for (std::size_t r = 0; r < kRanks; ++r) parts.push_back({&all[r * kCount], kCount});
      if (kind == CollectiveKind::kAllGather) args.output_parts = parts;
      if (kind == CollectiveKind::kReduceScatter) args.input_parts = parts;
      collectives.run(args, kTimeout);
      static_cast<void>(rank);
    });
    return hosts.network().bytes();
  };
  // A rail's share is half of a tensor; there are 2 rails.
  for (const Space space : {Space::kCpu, Space::kStream}) {
    const auto bytes_of = [&](CollectiveKind kind) { return bytes_in(space, kind); };
    EXPECT_EQ(bytes_of(CollectiveKind::kAllReduce),
              kRanks * 2 * (kHosts - 1) * kBytes / 2 / kHosts);
    EXPECT_EQ(bytes_of(CollectiveKind::kReduceScatter), kRanks * (kHosts - 1) * kBytes);
    EXPECT_EQ(bytes_of(CollectiveKind::kAllGather), kRanks * (kHosts - 1) * kBytes);
    EXPECT_EQ(bytes_of(CollectiveKind::kBroadcast), (kHosts - 1) * kBytes);
  }
}

// What a rank keeps for messages, by the number of hosts.
TEST(HostCollectives, TakesAtMost64MiB) {
  for (const int hosts : {2, 3, 4, 5, 7, 8, 16, 64}) {
    for (const HostLimits& limits : {gpu_limits(hosts), cpu_limits(hosts, true, true)}) {
      const auto count = static_cast<std::size_t>(hosts);
      const auto of_each = [&](std::size_t bytes) {
        return bytes * 8 / std::max<std::size_t>(count, 8);
      };
      constexpr std::size_t kMost = std::size_t{64} << 20;
      EXPECT_LE(2 * (2 * count - 1) * of_each(limits.share_bytes), kMost) << hosts;
      EXPECT_LE((count - 1) * of_each(limits.leader_broadcast_bytes), kMost) << hosts;
    }
  }
}

// Whatever the two calls are, ranks of one host compare them before they wait for another host.
TEST(HostCollectives, DifferentCallsAreAnErrorOnEveryRank) {
  for (const int odd : {0, 1, 2, 3}) {
    for (const std::pair<int, int>& counts :
         {std::pair{40, 30}, std::pair{40, 30'000}, std::pair{30'000, 40}}) {
      Hosts hosts("aabb", kSmallLimits);
      const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
        std::vector<float> data(
            static_cast<std::size_t>(rank == odd ? counts.first : counts.second));
        collectives.run(test::sum_args(data), kTimeout);
      });
      for (const auto& error : errors) {
        ASSERT_TRUE(error);
        EXPECT_NE(error->code(), ErrorCode::kTimeout) << error->what();
        EXPECT_NE(std::string(error->what()).find("all_reduce over hosts"), std::string::npos);
      }
    }
  }
}

// A rank that waits for nobody in its call hears of it in the next one.
TEST(HostCollectives, DifferentKindsAndRootsAreAnErrorOnEveryRank) {
  const auto call = [](CollectiveKind kind, int root, std::vector<float>& data) {
    CollectiveArgs args = test::sum_args(data);
    args.kind = kind;
    args.root = root;
    return args;
  };
  for (const int odd : {0, 1, 3}) {
    for (const std::pair<CollectiveKind, int>& other :
         {std::pair{CollectiveKind::kBroadcast, 1}, std::pair{CollectiveKind::kReduce, 0},
          std::pair{CollectiveKind::kBarrier, 0}}) {
      for (const std::size_t count : {40, 30'000}) {
        Hosts hosts("aabb", kSmallLimits);
        const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
          std::vector<float> data(count);
          CollectiveArgs args = call(CollectiveKind::kBroadcast, 0, data);
          if (rank == odd) args = call(other.first, other.second, data);
          collectives.run(args, kTimeout);
          collectives.run(CollectiveArgs(), kTimeout);
        });
        for (const auto& error : errors) {
          ASSERT_TRUE(error);
          EXPECT_NE(error->code(), ErrorCode::kTimeout) << error->what();
        }
      }
    }
  }
}

// Ranks of one host compare these, and messages are on their way before.
TEST(HostCollectives, DifferentGathersAndScattersAreAnErrorOnEveryRank) {
  struct Call {
    CollectiveKind kind;
    int root;
    std::size_t count;
  };
  constexpr std::size_t kMost = 30'000;
  constexpr auto kScatter = CollectiveKind::kScatter;
  constexpr auto kGather = CollectiveKind::kGather;
  const auto run = [](const Call& call, int rank, HostCollectives& collectives) {
    std::vector<float> own(call.count);
    std::vector<float> all(4 * call.count);
    std::vector<Part> parts;
    for (std::size_t r = 0; r < 4; ++r) parts.push_back({&all[r * call.count], call.count});
    CollectiveArgs args;
    args.kind = call.kind;
    args.dtype = Dtype::kFloat32;
    args.root = call.root;
    args.count = call.count;
    if (call.kind == kScatter) args.output = own.data();
    if (call.kind == kGather) args.input = own.data();
    if (rank == call.root) {
      (call.kind == kScatter ? args.input_parts : args.output_parts) = parts;
    }
    collectives.run(args, kTimeout);
  };
  for (const CollectiveKind kind : {kScatter, kGather}) {
    const CollectiveKind other = kind == kScatter ? kGather : kScatter;
    const Call usual{kind, 1, kMost};
    for (const Call& wrong : {Call{kind, 0, kMost}, Call{kind, 2, kMost}, Call{kind, 1, kMost - 1},
                              Call{kind, 1, 40}, Call{other, 1, kMost}}) {
      for (const Space space : {Space::kCpu, Space::kAnyMemory}) {
        for (const int odd : {0, 1, 2, 3}) {
          Hosts hosts("aabb", kSmallLimits, space);
          const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
            run(rank == odd ? wrong : usual, rank, collectives);
            collectives.run(CollectiveArgs(), kTimeout);
          });
          for (const auto& error : errors) {
            ASSERT_TRUE(error);
            EXPECT_NE(error->code(), ErrorCode::kTimeout) << error->what();
          }
        }
      }
    }
  }
}

TEST(HostCollectives, LeadersNameTheHostThatCallsOtherwise) {
  Hosts hosts("ab", kSmallLimits);
  const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
    std::vector<float> data(rank == 0 ? 4 : 5);
    collectives.run(test::sum_args(data), kTimeout);
  });
  const bool first = errors[0] && errors[0]->code() == ErrorCode::kMismatch;
  test::expect_error(errors[first ? 0 : 1], ErrorCode::kMismatch,
                     {"ranks made different calls", first ? "rank 1 on host b" : "rank 0 on host a",
                      "all_reduce", "5 elements", "4 elements"});
}

// NOTE [Late calls]: messages have no heads, and those of different calls do not match. Every rank
// names the difference, in far less than the time-out.
TEST(HostCollectives, LateRanksNameTheHostThatCallsOtherwise) {
  for (const std::string layout : {"ab", "aabb", "abab", "aabbcc", "abc"}) {
    SCOPED_TRACE(layout);
    const auto odd_host = layout.size() > 3 ? 1 : 0;
    for (const std::size_t other_count : {std::size_t{30'000}, std::size_t{10}}) {
      Hosts hosts(layout, kSmallLimits, Space::kCpu, true);
      const auto begin = std::chrono::steady_clock::now();
      const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
        const int host = hosts.layout().host_of[static_cast<std::size_t>(rank)];
        std::vector<float> data(host == odd_host ? other_count : 40'000);
        collectives.run(test::sum_args(data), kTimeout);
      });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout / 4);
      bool found = false;
      for (const auto& error : errors) {
        ASSERT_TRUE(error);
        EXPECT_NE(error->code(), ErrorCode::kTimeout) << error->what();
        if (error->code() != ErrorCode::kMismatch) continue;
        found = true;
        test::expect_error(error, ErrorCode::kMismatch,
                           {"ranks made different calls", "all_reduce", "40000 elements",
                            text_of(other_count, " elements"), " on host "});
      }
      EXPECT_TRUE(found);
    }
  }
}

// Two ranks of different hosts that differ in a share between them, which nobody else knows.
TEST(HostCollectives, LateRanksNameTheShareThatDiffers) {
  // An engine that hands messages over, and one where the sender is in its next call by then.
  for (const bool hands_over : {true, false}) {
    Hosts hosts("aabb", kSmallLimits, Space::kAnyMemory, hands_over);
    const auto errors = hosts.errors([&](int rank, HostCollectives& collectives) {
      std::vector<float> in(4'000);
      std::vector<float> out(4'000);
      std::vector<Part> input;
      std::vector<Part> output;
      for (int peer = 0; peer < 4; ++peer) {
        const auto at = static_cast<std::size_t>(peer) * 1'000;
        input.push_back({&in[at], 900});
        output.push_back({&out[at], rank == 3 && peer == 0 ? std::size_t{800} : 900});
      }
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllToAll;
      args.dtype = Dtype::kFloat32;
      args.input_parts = input;
      args.output_parts = output;
      collectives.run(args, kTimeout);
      collectives.run(CollectiveArgs(), kTimeout);
    });
    std::vector<std::string> words{"ranks made different calls", "all_to_all", "rank 0 on host a"};
    if (hands_over) {
      words.insert(words.end(), {"sends this rank 3600 bytes", "this one expects 3200 bytes"});
    } else {
      words.insert(words.end(), {"has ended that call, without this rank", "barrier number 2"});
    }
    test::expect_error(errors[3], ErrorCode::kMismatch, words);
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_NE(error->code(), ErrorCode::kTimeout) << error->what();
    }
  }
}

// A group of before has left notes under the same keys.
TEST(HostCollectives, NotesOfAnEarlierGroupAreNoDifference) {
  Hosts hosts("aabb", kSmallLimits);
  const auto late_call = [&](std::size_t count) {
    hosts.run([&](int rank, HostCollectives& collectives) {
      hosts.clear_late(rank);
      std::vector<float> data(count, 1.0f);
      collectives.run(CollectiveArgs(), kTimeout);
      if (rank == 0) std::this_thread::sleep_for(4 * kLateCall);
      collectives.run(test::sum_args(data), kTimeout);
    });
  };
  late_call(40'000);
  late_call(30'000);
}

// A rank that is late, and not different, is waited for.
TEST(HostCollectives, ARankThatIsLateIsWaitedFor) {
  Hosts hosts("aabb", kSmallLimits);
  hosts.run([&](int rank, HostCollectives& collectives) {
    for (int round = 0; round < 2; ++round) {
      if (rank == round) std::this_thread::sleep_for(4 * kLateCall);
      std::vector<float> data(40'000, 1.0f);
      collectives.run(test::sum_args(data), kTimeout);
      EXPECT_EQ(data[39'999], 4.0f);
    }
  });
}

}  // namespace
}  // namespace symm
