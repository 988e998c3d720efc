// A group over several hosts with CUDA tensors, whole but for the GPUs and the engine: ranks are
// threads on fake GPUs, each a host of its own, and the engine moves bytes through the store.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <symm/ProcessGroupSymm.hpp>
#include <symm/inter_host.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "test/support/torch_on_fake_gpus.hpp"

namespace symm::test {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using EngineWork = c10::intrusive_ptr<c10d::Work>;

// Receives when it is waited for, as a stream would.
class StoreWork final : public c10d::Work {
 public:
  explicit StoreWork(std::vector<std::function<void()>> receives)
      : receives_(std::move(receives)) {}
  bool wait(std::chrono::milliseconds) override {
    for (const auto& receive : receives_) receive();
    receives_.clear();
    return true;
  }

 private:
  std::vector<std::function<void()>> receives_;
};

// What happens to the engines of all ranks.
struct EngineState {
  std::atomic<c10d::ErrorType> error{c10d::ErrorType::SUCCESS};
  std::atomic<int> aborts{0};
  std::atomic<int> shutdowns{0};
};
EngineState& engine_state() {
  static EngineState state;
  return state;
}

// An engine in batches, as NCCL is. Messages of two ranks arrive in the order of their sending.
class StoreEngine final : public c10d::Backend {
 public:
  StoreEngine(StorePtr store, int rank, int size) : Backend(rank, size), store_(std::move(store)) {}

  c10d::ErrorType getError() override { return engine_state().error; }
  void abort() override { ++engine_state().aborts; }
  void shutdown() override { ++engine_state().shutdowns; }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { together_ = true; }
  EngineWork endCoalescing() override {
    together_ = false;
    return c10::make_intrusive<StoreWork>(std::exchange(receives_, {}));
  }
  EngineWork send(std::vector<at::Tensor>& tensors, int to, int) override {
    const auto* const data = static_cast<const std::uint8_t*>(tensors[0].const_data_ptr());
    store_->set(key(rank_, to, sent_[static_cast<std::size_t>(to)]++),
                std::vector<std::uint8_t>(data, data + tensors[0].nbytes()));
    return together_ ? nullptr : c10::make_intrusive<StoreWork>(std::exchange(receives_, {}));
  }
  EngineWork recv(std::vector<at::Tensor>& tensors, int from, int) override {
    const std::string name = key(from, rank_, received_[static_cast<std::size_t>(from)]++);
    receives_.push_back([store = store_, name, tensor = tensors[0]] {
      const std::vector<std::uint8_t> bytes = store->get(name);
      if (bytes.size() != tensor.nbytes()) throw std::runtime_error("a message of another size");
      std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    });
    return together_ ? nullptr : c10::make_intrusive<StoreWork>(std::exchange(receives_, {}));
  }

 private:
  static std::string key(int from, int to, int number) {
    return std::to_string(from) + "/" + std::to_string(to) + "/" + std::to_string(number);
  }

  const StorePtr store_;
  bool together_ = false;
  std::vector<std::function<void()>> receives_;
  std::vector<int> sent_ = std::vector<int>(8);
  std::vector<int> received_ = std::vector<int>(8);
};

std::string no_problem(const std::string&) { return ""; }

void use_store_engines() {
  set_inter_host_engines(
      {.problem = no_problem,
       .make = [](const std::string&, const StorePtr& store, int rank, int size,
                  std::chrono::milliseconds) -> c10::intrusive_ptr<c10d::Backend> {
         return c10::make_intrusive<StoreEngine>(store, rank, size);
       },
       .gpu_problem = no_problem,
       .make_for_gpu = [](const std::string&, const StorePtr& store, int rank, int size,
                          std::chrono::milliseconds,
                          c10::Device) -> c10::intrusive_ptr<c10d::Backend> {
         return c10::make_intrusive<StoreEngine>(store, rank, size);
       }});
}

// What a rank does: its tensors are on the fake GPU of its number.
class HostRank {
 public:
  HostRank(const StorePtr& store, int rank, int size) : rank_(rank), size_(size) {
    auto options = c10::make_intrusive<ProcessGroupSymm::Options>();
    options->timeout = std::chrono::seconds(30);
    group_ = c10::make_intrusive<ProcessGroupSymm>(store, rank, size, options);
  }

  ProcessGroupSymm& group() { return *group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Of `count` elements: value(rank, i) for every i.
  at::Tensor filled(std::size_t count) { return tensor(values(rank_, count)); }
  at::Tensor empty(std::size_t count) { return tensor(std::vector<float>(count, -1.0f)); }
  static std::vector<float> values(int rank, std::size_t count) {
    std::vector<float> made(count);
    for (std::size_t i = 0; i < count; ++i) {
      made[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 131) % 1009);
    }
    return made;
  }
  static std::vector<float> read(const at::Tensor& tensor) {
    const auto* const data = static_cast<const float*>(tensor.const_data_ptr());
    return {data, data + tensor.numel()};
  }
  std::vector<float> sum(std::size_t count) const {
    std::vector<float> total(count);
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<float> one = values(rank, count);
      for (std::size_t i = 0; i < count; ++i) total[i] += one[i];
    }
    return total;
  }

 private:
  at::Tensor tensor(std::vector<float> elements) {
    memory_.push_back(std::make_unique<std::vector<float>>(std::move(elements)));
    return gpu_tensor(*memory_.back(), rank_);
  }

  const int rank_;
  const int size_;
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
  c10::intrusive_ptr<ProcessGroupSymm> group_;
};

// Runs `body` on `size` ranks, each of which says that it is on a host of its own.
void on_hosts(int size, const std::function<void(HostRank&)>& body) {
  if (!use_fake_gpus()) GTEST_SKIP() << "torch has GPUs of its own here";
  const FakeGpus gpus;
  use_store_engines();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t before = store->getNumKeys();
    ::setenv("SYMM_HOST_ID", ("host-" + std::to_string(rank)).c_str(), 1);
    ranks.emplace_back([&, rank] {
      try {
        HostRank one(store, rank, size);
        body(one);
        one.group().shutdown();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failures += std::to_string(rank) + ": " + error.what() + "\n";
      }
    });
    // It has read the variable once it publishes.
    while (store->getNumKeys() == before) std::this_thread::yield();
  }
  for (std::thread& rank : ranks) rank.join();
  ::unsetenv("SYMM_HOST_ID");
  EXPECT_EQ(failures, "");
}

void wait(const EngineWork& work) {
  if (work) work->wait();
}

constexpr std::size_t kCounts[] = {1, 5, 70'001, 2'500'000};

class HostsOnGpusTest : public ::testing::TestWithParam<int> {};

TEST_P(HostsOnGpusTest, Reductions) {
  on_hosts(GetParam(), [](HostRank& r) {
    for (const std::size_t count : kCounts) {
      for (const bool is_async : {false, true}) {
        std::vector<at::Tensor> tensors{r.filled(count)};
        c10d::AllreduceOptions options;
        options.asyncOp = is_async;
        wait(r.group().allreduce(tensors, options));
        EXPECT_EQ(HostRank::read(tensors[0]), r.sum(count)) << count;
      }
      std::vector<at::Tensor> tensors{r.filled(count)};
      c10d::ReduceOptions to_root;
      to_root.rootRank = 1;
      to_root.asyncOp = false;
      wait(r.group().reduce(tensors, to_root));
      if (r.rank() == 1) {
        EXPECT_EQ(HostRank::read(tensors[0]), r.sum(count)) << count;
      }
      at::Tensor input = r.filled(count * static_cast<std::size_t>(r.size()));
      at::Tensor output = r.empty(count);
      wait(r.group()._reduce_scatter_base(output, input, {}));
      const std::vector<float> all = r.sum(count * static_cast<std::size_t>(r.size()));
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * r.rank();
      EXPECT_EQ(HostRank::read(output),
                std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)));
    }
  });
}

TEST_P(HostsOnGpusTest, Movements) {
  on_hosts(GetParam(), [](HostRank& r) {
    const auto ranks = static_cast<std::size_t>(r.size());
    for (const std::size_t count : kCounts) {
      std::vector<at::Tensor> tensors{r.filled(count)};
      c10d::BroadcastOptions from_root;
      from_root.rootRank = 1;
      wait(r.group().broadcast(tensors, from_root));
      EXPECT_EQ(HostRank::read(tensors[0]), HostRank::values(1, count));
      at::Tensor input = r.filled(count);
      at::Tensor output = r.empty(count * ranks);
      wait(r.group()._allgather_base(output, input, {}));
      std::vector<float> all;
      for (int rank = 0; rank < r.size(); ++rank) {
        const std::vector<float> one = HostRank::values(rank, count);
        all.insert(all.end(), one.begin(), one.end());
      }
      EXPECT_EQ(HostRank::read(output), all);
      at::Tensor each = r.filled(count * ranks);
      at::Tensor exchanged = r.empty(count * ranks);
      std::vector<std::int64_t> equal;
      wait(r.group().alltoall_base(exchanged, each, equal, equal, {}));
      std::vector<float> expected;
      for (int rank = 0; rank < r.size(); ++rank) {
        const std::vector<float> whole = HostRank::values(rank, count * ranks);
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(count) * r.rank();
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
      }
      EXPECT_EQ(HostRank::read(exchanged), expected);
      wait(r.group().barrier({}));
    }
  });
}

TEST_P(HostsOnGpusTest, MessagesAloneAndInABlock) {
  on_hosts(GetParam(), [](HostRank& r) {
    const int next = (r.rank() + 1) % r.size();
    const int before = (r.rank() + r.size() - 1) % r.size();
    std::vector<at::Tensor> there{r.filled(5'000)};
    std::vector<at::Tensor> here{r.empty(5'000)};
    for (const bool in_block : {true, false}) {
      if (in_block) r.group().startCoalescing();
      EngineWork sent = r.group().send(there, next, 3);
      EngineWork received = r.group().recv(here, before, 3);
      if (in_block) {
        wait(r.group().endCoalescing());
      } else {
        wait(sent);
        wait(received);
      }
      EXPECT_EQ(HostRank::read(here[0]), HostRank::values(before, 5'000));
      std::memset(here[0].mutable_data_ptr(), 0, here[0].nbytes());
    }
  });
}

TEST_P(HostsOnGpusTest, TheGroupEndsItsEngineInGoodOrder) {
  EngineState& state = engine_state();
  state.aborts = state.shutdowns = 0;
  on_hosts(GetParam(), [](HostRank& r) {
    std::vector<at::Tensor> tensors{r.filled(5)};
    wait(r.group().allreduce(tensors, {}));
  });
  EXPECT_EQ(state.shutdowns, GetParam());  // the engine of the CPU is dropped
}

// What the engine says is wrong fails the ranks, and they end the engine.
TEST_P(HostsOnGpusTest, AnErrorOfTheEngineFailsTheGroup) {
  EngineState& state = engine_state();
  state.aborts = 0;
  std::atomic<int> ready = 0;
  on_hosts(GetParam(), [&](HostRank& r) {
    std::vector<at::Tensor> tensors{r.filled(5)};
    wait(r.group().allreduce(tensors, {}));
    ++ready;
    while (ready < r.size()) std::this_thread::yield();
    state.error = c10d::ErrorType::TIMEOUT;
    while (r.group().getError() == c10d::ErrorType::SUCCESS) std::this_thread::yield();
    EXPECT_EQ(r.group().getError(), c10d::ErrorType::TIMEOUT);
    try {
      r.group().allreduce(tensors, {});
      ADD_FAILURE() << "a call of a failed group returned";
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("nccl between hosts (host-0: rank 0; host-1"), std::string::npos) << text;
      EXPECT_NE(text.find("Timed out"), std::string::npos) << text;
    }
  });
  state.error = c10d::ErrorType::SUCCESS;
  EXPECT_GE(state.aborts, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostsOnGpusTest, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace symm::test
