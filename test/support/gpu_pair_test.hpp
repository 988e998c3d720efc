// Calls of torch on a fake GPU, in a group of two.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <symm/ProcessGroupSymm.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "test/support/fake_gpu.hpp"
#include "test/support/torch_on_fake_gpus.hpp"

namespace symm::test {

// Rank 0 of the group, whose other rank is a thread that only takes part in the first call.
class GpuPairTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kElements = 64;

  void SetUp() override {
    if (!use_fake_gpus()) GTEST_SKIP() << "torch has GPUs of its own here";
    auto store = c10::make_intrusive<c10d::HashStore>();
    peer_ = std::thread([this, store] {
      std::vector<float> elements(kElements);
      auto group = make_group(store, 1);
      std::vector<at::Tensor> tensors{gpu_tensor(elements, 1)};
      group->allreduce(tensors, reduce_options());
      done_.get_future().wait();
    });
    group_ = make_group(store, 0);
    tensors_ = {gpu_tensor(elements_, 0)};
    group_->allreduce(tensors_, reduce_options());
  }
  void TearDown() override {
    if (!peer_.joinable()) return;
    done_.set_value();
    peer_.join();
    group_.reset();
  }

  static c10d::AllreduceOptions reduce_options(bool async_op = false) {
    c10d::AllreduceOptions options;
    options.asyncOp = async_op;
    return options;
  }

  FakeGpus gpus_;
  std::vector<float> elements_ = std::vector<float>(kElements);
  std::vector<at::Tensor> tensors_;  // one, of `elements_`
  c10::intrusive_ptr<ProcessGroupSymm> group_;

 private:
  static c10::intrusive_ptr<ProcessGroupSymm> make_group(
      const c10::intrusive_ptr<c10d::HashStore>& store, int rank) {
    auto options = c10::make_intrusive<ProcessGroupSymm::Options>();
    options->timeout = std::chrono::seconds(30);
    return c10::make_intrusive<ProcessGroupSymm>(store, rank, 2, options);
  }

  std::promise<void> done_;
  std::thread peer_;
};

}  // namespace symm::test
