// Recvs from any rank on GPUs, whole but for the GPUs: ranks are threads, kernels move nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <symm/ProcessGroupSymm.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "test/libtorch/expect_raises.hpp"
#include "test/support/torch_on_fake_gpus.hpp"

namespace symm::test {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// One rank of a group.
struct Rank {
  ProcessGroupSymm& group;
  FakeGpu& gpu;
  std::barrier<>& meeting;
  std::vector<float> elements = std::vector<float>(16);

  int number() const { return group.getRank(); }
  void meet() { meeting.arrive_and_wait(); }
  at::Tensor tensor() { return gpu_tensor(elements, number()); }
  WorkPtr send(int to, int tag = 0) {
    std::vector<at::Tensor> tensors{tensor()};
    return group.send(tensors, to, tag);
  }
  WorkPtr recv(int from, int tag = 0) {
    std::vector<at::Tensor> tensors{tensor()};
    return group.recv(tensors, from, tag);
  }
  WorkPtr recv_any(int tag = 0) {
    std::vector<at::Tensor> tensors{tensor()};
    return group.recvAnysource(tensors, tag);
  }
  // The peers of the recvs that were launched.
  std::vector<int> sources() const {
    std::vector<int> peers;
    for (const FakeLaunch& launch : gpu.kernels().launches()) {
      for (const TransferOp& op : launch.ops) {
        if (!op.is_send) peers.push_back(op.peer);
      }
    }
    return peers;
  }
};

class RecvFromAnyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!use_fake_gpus()) GTEST_SKIP() << "torch has GPUs of its own here";
  }
  void run(int world, const std::function<void(Rank&)>& body,
           milliseconds timeout = std::chrono::seconds(20)) {
    if (IsSkipped()) return;
    auto store = c10::make_intrusive<c10d::HashStore>();
    std::barrier<> meeting(world);
    std::vector<std::thread> ranks;
    for (int number = 0; number < world; ++number) {
      ranks.emplace_back([&, number] {
        auto options = c10::make_intrusive<ProcessGroupSymm::Options>();
        options->timeout = timeout;
        auto group = c10::make_intrusive<ProcessGroupSymm>(store, number, world, options);
        Rank rank{*group, gpus_[number], meeting};
        std::vector<at::Tensor> tensors{rank.tensor()};
        group->allreduce(tensors, c10d::AllreduceOptions())->wait();
        rank.meet();
        body(rank);
        meeting.arrive_and_wait();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  FakeGpus gpus_;
};

TEST_F(RecvFromAnyTest, ReturnsWhoseMessageHasCome) {
  run(3, [](Rank& rank) {
    if (rank.number() == 2) rank.send(0, 7)->wait();
    rank.meet();
    if (rank.number() == 0) {
      const WorkPtr work = rank.recv_any(7);
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(work->sourceRank(), 2);
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->isSuccess());
      EXPECT_EQ(work->getFuture()->value().toTensorVector().size(), 1u);
      EXPECT_EQ(rank.sources(), std::vector<int>{2});
    }
    rank.meet();
  });
}

TEST_F(RecvFromAnyTest, WaitsForAMessageThatComesLater) {
  run(3, [](Rank& rank) {
    WorkPtr work;
    if (rank.number() == 0) {
      work = rank.recv_any();
      EXPECT_FALSE(work->isCompleted());
      expect_raises<c10::Error>([&] { work->sourceRank(); }, {"wait() first"});
      expect_raises<c10::DistBackendError>([&] { work->wait(milliseconds(20)); },
                                           {"no sender after 20 ms"});
      EXPECT_TRUE(rank.sources().empty());
    }
    rank.meet();
    if (rank.number() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      rank.send(0)->wait();
    }
    if (rank.number() == 0) {
      work->wait();
      EXPECT_EQ(work->sourceRank(), 1);
    }
    rank.meet();
  });
}

// A message that is announced while recvs are looked through is for the first that fits, not for
// one behind it that is asked about a moment later.
TEST_F(RecvFromAnyTest, AMessageIsForTheFirstThatFits) {
  constexpr int kRounds = 20'000;
  run(2, [](Rank& rank) {
    std::vector<std::vector<float>> memory(3, std::vector<float>(4));
    for (int round = 0; round < kRounds; ++round) {
      rank.meet();
      if (rank.number() == 1) {
        // From before the first recv to after the last.
        for (int i = 0; i < round % 128; ++i) static_cast<void>(std::chrono::steady_clock::now());
        for (int part = 0; part < 3; ++part) rank.send(0)->wait();
      } else {
        std::vector<WorkPtr> works;
        for (std::size_t part = 0; part < 3; ++part) {
          std::vector<at::Tensor> tensors{gpu_tensor(memory[part], 0)};
          works.push_back(part == 1 ? rank.group.recvAnysource(tensors, 0)
                                    : rank.group.recv(tensors, 1, 0));
        }
        for (const WorkPtr& work : works) work->wait();
      }
    }
    if (rank.number() == 1) return;
    std::size_t number = 0;
    for (const FakeLaunch& launch : rank.gpu.kernels().launches()) {
      for (const TransferOp& op : launch.ops) {
        ASSERT_EQ(op.data, static_cast<void*>(memory[number % 3].data())) << "recv " << number;
        ++number;
      }
    }
    EXPECT_EQ(number, 3u * kRounds);
  });
}

TEST_F(RecvFromAnyTest, StartsAlthoughNobodyWaits) {
  run(2, [](Rank& rank) {
    WorkPtr work;
    if (rank.number() == 0) work = rank.recv_any();
    rank.meet();
    if (rank.number() == 1) rank.send(0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    // What the kernel would say of itself.
    const auto begun = [&] {
      return load_acquire(&rank.gpu.kernels().page().messages_entered[1][tag_channel_of(0)][1]);
    };
    while (rank.number() == 0 && begun() == 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    if (rank.number() == 0) {
      EXPECT_EQ(begun(), 1u);
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(work->sourceRank(), 1);
    }
    rank.meet();
  });
}

// The first recv that fits a message gets it, whoever was named.
TEST_F(RecvFromAnyTest, RecvsBehindItKeepTheirOrder) {
  run(3, [](Rank& rank) {
    std::vector<WorkPtr> works;
    if (rank.number() == 0) {
      works = {rank.recv_any(1), rank.recv(1, 1), rank.recv(1, 5), rank.recv(2, 2)};
      EXPECT_EQ(rank.sources(), std::vector<int>{2}) << "another channel does not wait";
    }
    rank.meet();
    if (rank.number() == 1) rank.send(0, 5)->wait();
    rank.meet();
    if (rank.number() == 0) {
      works[2]->wait();
      EXPECT_EQ(works[2]->sourceRank(), 1);
      EXPECT_FALSE(works[0]->isCompleted());
      EXPECT_FALSE(works[1]->isCompleted());
    }
    rank.meet();
    if (rank.number() == 1) rank.send(0, 1)->wait();
    rank.meet();
    if (rank.number() == 0) {
      works[0]->wait();
      EXPECT_EQ(works[0]->sourceRank(), 1);
      EXPECT_FALSE(works[1]->isCompleted());
    }
    rank.meet();
    if (rank.number() == 1) rank.send(0, 1)->wait();
    rank.meet();
    if (rank.number() == 0) {
      works[1]->wait();
      EXPECT_EQ(rank.sources(), (std::vector<int>{2, 1, 1, 1}));
      EXPECT_EQ(rank.recv(1, 1)->sourceRank(), 1) << "nothing waits any more";
    }
    rank.meet();
  });
}

TEST_F(RecvFromAnyTest, WhatItCannotBePartOfIsRefused) {
  run(2, [](Rank& rank) {
    WorkPtr work;
    if (rank.number() == 0) {
      rank.group.startCoalescing();
      expect_raises<c10::NotImplementedError>([&] { rank.recv_any(); },
                                              {"recv: src", "cannot be in a batch", "cuda:0"});
      rank.group.endCoalescing();
      work = rank.recv_any(4);
      rank.group.startCoalescing();
      rank.recv(1, 8);
      expect_raises<c10::NotImplementedError>([&] { rank.group.endCoalescing(); },
                                              {"recv with tag 8", "in a batch", "modulo 4"});
      rank.group.startCoalescing();
      rank.recv(1, 1);
      rank.send(1, 4);
      rank.group.endCoalescing()->wait();
      EXPECT_EQ(rank.sources(), std::vector<int>{1});
      expect_raises<c10::ValueError>([&] { rank.group.suspend(); },
                                     {"suspend()", "recv from any rank"});
    }
    rank.meet();
    if (rank.number() == 1) rank.send(0, 4)->wait();
    if (rank.number() == 0) work->wait();
    rank.meet();
  });
  run(1, [](Rank& rank) {
    expect_raises<c10::ValueError>([&] { rank.recv_any(); }, {"recv: src", "another rank"});
  });
}

TEST_F(RecvFromAnyTest, EndsWithTheGroup) {
  run(2, [](Rank& rank) {
    WorkPtr work;
    if (rank.number() == 0) work = rank.recv_any();
    rank.meet();
    if (rank.number() == 0) {
      rank.group.shutdown();
      expect_raises<c10::DistBackendError>([&] { work->wait(); },
                                           {"was destroyed", "recv from any rank"});
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->getFuture()->hasError());
    }
    rank.meet();
  });
}

TEST_F(RecvFromAnyTest, RanksThatAreGoneAreNamed) {
  run(2, [](Rank& rank) {
    WorkPtr work;
    if (rank.number() == 0) work = rank.recv_any(3);
    rank.meet();
    if (rank.number() == 1) rank.group.shutdown();
    if (rank.number() == 0) {
      expect_raises<c10::DistBackendError>(
          [&] { work->wait(); }, {"recv from any rank (tag 3, 64 bytes)", "rank 1 has left"});
      expect_raises<c10::DistBackendError>([&] { rank.recv_any(); }, {"rank 1 has left"});
    }
    rank.meet();
  });
}

TEST_F(RecvFromAnyTest, ATimeOutFailsTheGroup) {
  run(
      2,
      [](Rank& rank) {
        if (rank.number() == 0) {
          const WorkPtr work = rank.recv_any(3);
          expect_raises<c10::DistBackendError>([&] { work->wait(); },
                                               {"recv from any rank (tag 3", "Timed out after 0."});
          EXPECT_TRUE(work->isCompleted());
          EXPECT_NE(work->exception(), nullptr);
        }
        rank.meet();
      },
      milliseconds(500));
}

TEST_F(RecvFromAnyTest, WaitForPendingWorksCoversIt) {
  run(2, [](Rank& rank) {
    if (rank.number() == 1) {
      std::this_thread::sleep_for(milliseconds(30));
      rank.send(0)->wait();
    } else {
      rank.recv_any();
      rank.group.waitForPendingWorks();
      EXPECT_EQ(rank.sources(), std::vector<int>{1});
    }
    rank.meet();
  });
}

}  // namespace
}  // namespace symm::test
