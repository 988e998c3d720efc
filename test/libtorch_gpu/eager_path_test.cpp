// What a call on a GPU costs the host: the instructions from ProcessGroupSymm's interface to the
// launch of a kernel, over a fake GPU, so on any machine. Figures in microseconds belong to a
// machine; these are the code's. The budgets are a tenth above what GCC 12 makes of it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/process_group_impl.hpp"
#include "test/libtorch/expect_raises.hpp"
#include "test/support/call_cost.hpp"
#include "test/support/gpu_pair_test.hpp"

namespace symm::test {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class EagerPathTest : public GpuPairTest {
 protected:
  void SetUp() override {
    GpuPairTest::SetUp();
    if (IsSkipped()) return;
    tensor_ = tensors_[0];
    all_ = gpu_tensor(all_elements_, 0);
  }

  // Of one call, without what the fake kernel itself does.
  std::optional<std::uint64_t> cost(const std::function<void()>& call) {
    constexpr int kCalls = 2;
    const auto repeat = [](const std::function<void()>& one) {
      for (int i = 0; i < kCalls; ++i) one();
    };
    const auto launch = [&] { gpus_[0].kernels().launch({}, {}, {}); };
    // As in a program that runs for some time: the flight record's ring has been full once.
    for (int i = 0; i < 3'000; ++i) call();
    const auto all = least_of([&] { repeat(call); });
    const auto own = least_of([&] { repeat(launch); });
    if (!all || !own) return std::nullopt;
    return (*all - *own) / kCalls;
  }
  // Of some tries: now and then malloc puts its free memory in order.
  std::optional<std::uint64_t> least_of(const std::function<void()>& body) {
    constexpr int kTries = 5;
    std::optional<std::uint64_t> least;
    for (int i = 0; i < kTries; ++i) {
      gpus_[0].kernels().forget_launches();
      const auto counted = instructions_of(body);
      if (!counted) return std::nullopt;
      least = std::min(least.value_or(*counted), *counted);
    }
    return least;
  }

  void expect_at_most(std::uint64_t budget, const std::string& name,
                      const std::function<void()>& call) {
    const std::optional<std::uint64_t> instructions = cost(call);
    if (!instructions) GTEST_SKIP() << "processes may not be traced here";
    std::printf("%s: %llu instructions of %llu\n", name.c_str(),
                static_cast<unsigned long long>(*instructions),
                static_cast<unsigned long long>(budget));
    EXPECT_LE(*instructions, budget) << name;
    EXPECT_GE(*instructions, 200u) << name << " cannot have been carried out";
  }

  std::vector<float> all_elements_ = std::vector<float>(2 * kElements);
  at::Tensor tensor_;
  at::Tensor all_;
};

TEST_F(EagerPathTest, ASynchronousCallReturnsNothing) {
  std::vector<at::Tensor> tensors{tensor_};
  c10d::AllreduceOptions options = reduce_options();
  EXPECT_EQ(group_->allreduce(tensors, options).get(), nullptr);
  options.asyncOp = true;
  const WorkPtr work = group_->allreduce(tensors, options);
  ASSERT_NE(work.get(), nullptr);
  EXPECT_TRUE(work->wait());
}

TEST_F(EagerPathTest, InABlockASynchronousCallReturnsNothing) {
  std::vector<at::Tensor> tensors{tensor_};
  group_->startCoalescing();
  EXPECT_EQ(group_->allreduce(tensors, reduce_options()).get(), nullptr);
  c10d::AllreduceOptions options = reduce_options();
  options.asyncOp = true;
  const WorkPtr inside = group_->allreduce(tensors, options);
  ASSERT_NE(inside.get(), nullptr);
  EXPECT_THROW(inside->wait(), c10::ValueError);
  const WorkPtr all = group_->endCoalescing();
  ASSERT_NE(all.get(), nullptr);
  EXPECT_TRUE(all->wait());
}

TEST_F(EagerPathTest, AWaitWithALimitWaitsForTheEnd) {
  std::vector<at::Tensor> tensors{tensor_};
  c10d::AllreduceOptions options = reduce_options();
  options.asyncOp = true;
  FakeGuard::events_have_passed = false;
  const WorkPtr work = group_->allreduce(tensors, options);
  EXPECT_TRUE(work->wait());
  EXPECT_FALSE(work->isCompleted());
  expect_raises<c10::DistBackendError>([&] { work->wait(std::chrono::milliseconds(20)); },
                                       {"on rank 0: not done after 20 ms; it stays in flight"});
  std::thread device([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    FakeGuard::events_have_passed = true;
  });
  EXPECT_TRUE(work->wait(std::chrono::seconds(20)));
  EXPECT_TRUE(work->isCompleted());
  device.join();
}

TEST_F(EagerPathTest, ACompletionHookIsToldOfEveryOperation) {
  EXPECT_FALSE(group_->hasHooks());
  std::vector<std::uint64_t> told;  // by a thread that has nothing to do after the wait
  group_->registerOnCompletionHook([&told](const std::shared_ptr<c10d::WorkInfo>& record) {
    EXPECT_EQ(record->opType, c10d::OpType::ALLREDUCE);
    EXPECT_GE(record->timeFinished, record->timeStarted);
    told.push_back(record->seq);
  });
  EXPECT_TRUE(group_->hasHooks());
  const std::uint64_t before = group_->getSequenceNumberForGroup();
  std::vector<at::Tensor> tensors{tensor_};
  c10d::AllreduceOptions options = reduce_options();
  for (const bool async_op : {false, true, true, false}) {
    options.asyncOp = async_op;
    group_->allreduce(tensors, options);
  }
  group_->waitForPendingWorks();
  EXPECT_EQ(told, (std::vector<std::uint64_t>{before + 1, before + 2, before + 3, before + 4}));
}

// Also where the device goes on between the questions whether an operation has ended.
TEST_F(EagerPathTest, AHookHearsOfTheEndsInOrder) {
  std::vector<std::uint64_t> told;
  group_->registerOnCompletionHook(
      [&told](const std::shared_ptr<c10d::WorkInfo>& record) { told.push_back(record->seq); });
  std::vector<at::Tensor> tensors{tensor_};
  c10d::AllreduceOptions options = reduce_options();
  for (int queries = 0; queries < 12; ++queries) {
    const std::uint64_t before = group_->getSequenceNumberForGroup();
    FakeGuard::events_have_passed = false;
    for (const bool async_op : {true, false, true, true}) {
      options.asyncOp = async_op;
      group_->allreduce(tensors, options);
    }
    FakeGuard::queries_before_all_pass = queries;
    FakeGuard::events_have_passed = true;
    group_->waitForPendingWorks();
    FakeGuard::queries_before_all_pass = 0;
    EXPECT_EQ(told, (std::vector<std::uint64_t>{before + 1, before + 2, before + 3, before + 4}))
        << queries << " questions were answered with no";
    told.clear();
  }
}

TEST_F(EagerPathTest, AllReduce) {
  std::vector<at::Tensor> tensors{tensor_};
  const c10d::AllreduceOptions options = reduce_options();
  expect_at_most(3'500, "all_reduce", [&] { group_->allreduce(tensors, options); });
}

TEST_F(EagerPathTest, AnAsynchronousAllReduceAndItsWait) {
  std::vector<at::Tensor> tensors{tensor_};
  c10d::AllreduceOptions options = reduce_options();
  options.asyncOp = true;
  expect_at_most(5'850, "all_reduce, asynchronous",
                 [&] { group_->allreduce(tensors, options)->wait(); });
}

// As torch_symm.ops calls it: the kernel is given the norm, and what cannot be is refused before.
TEST_F(EagerPathTest, ANormedAllReduce) {
  std::vector<float> total(kElements);
  std::vector<float> normed(kElements);
  std::vector<float> weight(kElements);
  std::vector<float> short_weight(kElements - 1);
  NormedSum call{.total = gpu_tensor(total, 0),
                 .normed = gpu_tensor(normed, 0),
                 .x = tensor_,
                 .weight = gpu_tensor(weight, 0),
                 .residual = all_,
                 .eps = 0.5};
  ProcessGroupSymm::Impl& group = ProcessGroupSymm::Impl::of(*group_);
  EXPECT_THROW(group.all_reduce_rms_norm(call), c10::Error);  // a residual of another size
  call.residual = std::nullopt;
  call.weight = gpu_tensor(short_weight, 0);
  EXPECT_THROW(group.all_reduce_rms_norm(call), c10::Error);
  call.weight = gpu_tensor(weight, 0);
  FakeKernels& kernels = gpus_[0].kernels();
  kernels.forget_launches();
  group.all_reduce_rms_norm(call);
  ASSERT_EQ(kernels.launches().size(), 1u);
  const FakeLaunch& launch = kernels.launches().back();
  EXPECT_EQ(launch.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(launch.norm.columns, weight.size());
  EXPECT_EQ(launch.norm.eps, 0.5);
  EXPECT_EQ(launch.norm.weight, weight.data());
  EXPECT_EQ(launch.norm.residual, nullptr);
  EXPECT_EQ(launch.norm.result, normed.data());
}

TEST_F(EagerPathTest, AllGather) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  expect_at_most(4'650, "all_gather_into_tensor",
                 [&] { group_->_allgather_base(all_, tensor_, options); });
}

TEST_F(EagerPathTest, ReduceScatter) {
  c10d::ReduceScatterOptions options;
  options.asyncOp = false;
  expect_at_most(4'250, "reduce_scatter_tensor",
                 [&] { group_->_reduce_scatter_base(tensor_, all_, options); });
}

TEST_F(EagerPathTest, Broadcast) {
  std::vector<at::Tensor> tensors{tensor_};
  c10d::BroadcastOptions options;
  options.asyncOp = false;
  expect_at_most(3'480, "broadcast", [&] { group_->broadcast(tensors, options); });
}

// As batch_isend_irecv calls it, and one message for itself.
TEST_F(EagerPathTest, ABatchOfASendAndARecv) {
  std::vector<at::Tensor> sent{tensor_};
  std::vector<at::Tensor> received{all_};
  expect_at_most(10'800, "send and recv in a batch", [&] {
    group_->startCoalescing();
    group_->send(sent, 1, 0);
    group_->recv(received, 1, 0);
    group_->endCoalescing()->wait();
  });
}

TEST_F(EagerPathTest, ASendAndItsWait) {
  std::vector<at::Tensor> tensors{tensor_};
  expect_at_most(5'930, "send", [&] { group_->send(tensors, 1, 0)->wait(); });
}

}  // namespace
}  // namespace symm::test
