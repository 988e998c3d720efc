// SymmetricTensor and the choice of its memory's provider, as a LibTorch program uses them.
#include <symm/SymmetricTensor.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "symm_mem/c10d/provider_choice.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "test/libtorch/group_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/forked_child.hpp"

namespace symm::test {
namespace {

namespace torch_memory = c10d::symmetric_memory;
using std::chrono::milliseconds;

// `call` must raise a `Kind` whose message has all the words.
template <typename Kind>
void expect_raises(const std::function<void()>& call, const std::vector<std::string>& words) {
  try {
    call();
  } catch (const Kind& error) {
    const std::string text = error.what_without_backtrace();
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
    }
    return;
  }
  ADD_FAILURE() << "nothing was raised that says " << words.front();
}

TEST(SymmetricTensorTest, PeersAreReadAndWrittenAndOneTensorShowsAll) {
  run_ranks(3, [](int rank) {
    const auto shared = SymmetricTensor::empty({4, 5}, torch::dtype(torch::kInt), kGroup);
    EXPECT_EQ(shared.provider(), "native");
    ASSERT_EQ(shared.world_size(), 3);
    ASSERT_EQ(shared.rank(), rank);
    shared.local().copy_(pattern({4, 5}, rank));
    shared.barrier();
    const at::Tensor all = shared.contiguous_view();
    ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{3, 4, 5}));
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(shared.remote(peer).equal(pattern({4, 5}, peer))) << rank << " of " << peer;
      EXPECT_TRUE(all[peer].equal(pattern({4, 5}, peer))) << rank << " of " << peer;
    }
    EXPECT_TRUE(shared.remote(rank).is_same(shared.local()));

    // Rows 2 and 3 alone, as a tensor that existed already.
    const SymmetricTensor rows(shared.local().narrow(0, 2, 2), kGroup);
    EXPECT_TRUE(rows.remote((rank + 1) % 3).equal(pattern({4, 5}, (rank + 1) % 3).narrow(0, 2, 2)));
    shared.barrier(1);

    shared.remote((rank + 1) % 3)[0].fill_(-rank);
    shared.put_signal((rank + 1) % 3, 2);
    shared.wait_signal((rank + 2) % 3, 2);
    EXPECT_TRUE(shared.local()[0].equal(torch::full({5}, -((rank + 2) % 3), torch::kInt)));
    EXPECT_TRUE(shared.local()[1].equal(pattern({4, 5}, rank)[1]));
  });
}

TEST(SymmetricTensorTest, TensorsWithoutElementsOrDimensions) {
  run_ranks(2, [](int rank) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {1}, {0}, {3, 0}}) {
      const auto shared = SymmetricTensor::empty(sizes, torch::dtype(torch::kDouble), kGroup);
      shared.local().fill_(rank + 0.25);
      shared.barrier();
      EXPECT_TRUE(shared.remote(1 - rank).equal(torch::full(sizes, 1.25 - rank, torch::kDouble)));
      shared.barrier();
    }
  });
}

TEST(SymmetricTensorTest, WrongUseIsRefusedAndTheGroupGoesOn) {
  run_ranks(2, [](int rank) {
    const auto shared = SymmetricTensor::empty({4, 5}, torch::dtype(torch::kFloat), kGroup);
    for (const int wrong : {-1, 2}) {
      const std::vector<std::string> words = {"0 to 1", std::to_string(wrong)};
      expect_raises<c10::ValueError>([&] { shared.remote(wrong); }, words);
      expect_raises<c10::ValueError>([&] { shared.put_signal(wrong); }, words);
      expect_raises<c10::ValueError>([&] { shared.wait_signal(wrong); }, words);
    }
    expect_raises<c10::ValueError>([&] { SymmetricTensor(shared.local().t(), kGroup); },
                                   {"contiguous", "[5, 4]", "[1, 5]"});
    expect_raises<c10::ValueError>([&] { SymmetricTensor(torch::ones({7}), kGroup); },
                                   {"SymmetricTensor::empty", "[7]", "ordinary memory on cpu"});
    expect_raises<c10::NotImplementedError>([&] { shared.multicast_pointer(); }, {"multicast"});
    expect_raises<c10::DistBackendError>([&] { shared.wait_signal(1 - rank, 3, milliseconds(30)); },
                                         {"rank " + std::to_string(1 - rank), "30 ms"});
    shared.local().fill_(rank);
    shared.barrier();
    EXPECT_TRUE(shared.remote(1 - rank).equal(torch::full({4, 5}, 1.0F - rank)));
  });
}

// Stands in for an allocator of PyTorch; nothing is allocated from it.
class StandIn final : public torch_memory::SymmetricMemoryAllocator {
 public:
  explicit StandIn(std::string name) : name_(std::move(name)) {}
  void* alloc(std::size_t, int, const std::optional<std::string>&) override { return nullptr; }
  void free(void*) override {}
  std::size_t get_alloc_size(void*) override { return 0; }
  c10::intrusive_ptr<torch_memory::SymmetricMemory> rendezvous(
      void*, const std::optional<std::string>&) override {
    return nullptr;
  }
  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::kCUDA; }
  std::string name() override { return name_; }

 private:
  const std::string name_;
};

// As in a LibTorch that has the allocators of these names; the first is what PyTorch starts with.
void give_torch(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    torch_memory::register_availability(name, c10::make_intrusive<StandIn>(name));
  }
  torch_memory::set_backend(names.front());
}

std::string selected_in_torch() { return *torch_memory::get_backend(c10::Device(c10::kCUDA)); }

SymmetricTensor allocate_one() {
  return SymmetricTensor::empty({3}, torch::dtype(torch::kFloat), kGroup);
}

TEST(MemoryProviderTest, UnknownNamesRaiseAndListTheKnownOnes) {
  const std::string known = "native, cuda, nccl, nvshmem";
  for (const std::string name : {"", "NCCL", "x"}) {
    expect_raises<c10::ValueError>([&] { memory_provider(name); }, {known, "'" + name + "'"});
  }
  const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "ncl");
  const std::vector<std::string> words = {"SYMM_MEMORY_PROVIDER", known, "'ncl'"};
  expect_raises<c10::ValueError>([] { memory_provider(); }, words);
  expect_raises<c10::ValueError>([] { allocate_one(); }, words);
  EXPECT_EQ(memory_provider("native"), "native");  // does not look at the variable
}

TEST(MemoryProviderTest, AChoiceIsSelectedInTorchAndWhatIsMissingNamesWhatIsThere) {
  run_ranks(1, [](int) {
    give_torch({"CUDA", "NCCL"});
    for (const std::string name : {"cuda", "nccl", "cuda"}) {
      EXPECT_EQ(memory_provider(name), name);
      EXPECT_EQ(selected_in_torch(), name == "nccl" ? "NCCL" : "CUDA");
    }
    expect_raises<c10::NotImplementedError>(
        [] { memory_provider("nvshmem"); },
        {"'nvshmem' cannot be used here: ", "NVSHMEM", "usable: native, cuda, nccl"});
    EXPECT_EQ(memory_provider(), "cuda");
    EXPECT_EQ(selected_in_torch(), "CUDA");
    const auto found = providers();
    EXPECT_EQ(found.size(), 4u);
    EXPECT_EQ(found.at("native") + found.at("cuda") + found.at("nccl"), "");
    EXPECT_NE(found.at("nvshmem"), "");
    EXPECT_EQ(selected_in_torch(), "CUDA");
    EXPECT_EQ(memory_provider("nccl"), "nccl");
    expect_raises<c10::NotImplementedError>(
        [] { allocate_one(); }, {"'nccl' has no memory on cpu; providers that have: native"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");  // what failed has left the choice open
  });
}

TEST(MemoryProviderTest, TheChoiceStandsFromTheFirstAllocationOn) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");
    EXPECT_EQ(memory_provider("native"), "native");
    allocate_one().local().fill_(1);
    expect_raises<c10::NotImplementedError>([] { memory_provider("cuda"); },
                                            {"'native' is in use", "'cuda' cannot be chosen"});
    EXPECT_EQ(memory_provider("native"), "native");
    EXPECT_EQ(memory_provider(), "native");
  });
}

TEST(MemoryProviderTest, AChoiceThatWasMadeElsewhereHolds) {
  run_ranks(1, [](int) {
    give_torch({"CUDA", "NCCL"});
    EXPECT_EQ(memory_provider_choice().name, "");
    record_memory_provider("nccl", false);
    EXPECT_EQ(memory_provider(), "nccl");
    EXPECT_EQ(memory_provider("cuda"), "cuda");
    record_memory_provider("cuda", true);
    const MemoryProviderChoice now = memory_provider_choice();
    EXPECT_TRUE(now.name == "cuda" && now.used);
    for (const std::string name : {"native", "nccl"}) {
      const std::vector<std::string> words = {"'cuda' is in use", "'" + name + "' cannot be"};
      expect_raises<c10::NotImplementedError>([&] { memory_provider(name); }, words);
      expect_raises<c10::NotImplementedError>([&] { record_memory_provider(name, false); }, words);
    }
    expect_raises<c10::ValueError>([] { record_memory_provider("x", true); }, {"'x'"});
  });
}

TEST(MemoryProviderTest, TheDefaultDoesNotOverrideAChoiceMadeInTorch) {
  run_ranks(1, [](int) {
    give_torch({"NCCL"});
    expect_raises<c10::NotImplementedError>([] { allocate_one(); },
                                            {"was set to NCCL", "'native'", "by default"});
    EXPECT_EQ(selected_in_torch(), "NCCL");
    const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "native");
    EXPECT_EQ(allocate_one().provider(), "native");
  });
}

// Over memory of the CPU, which PyTorch gives out whatever the provider for GPUs is.
void expect_refusals(const std::string& name, const std::string& torch_name) {
  run_ranks(1, [&](int) {
    give_torch({torch_name});
    memory_provider(name);
    register_symmetric_memory();
    const at::Tensor tensor =
        torch_memory::empty_strided_p2p({3}, {1}, c10::kFloat, c10::kCPU, {}, {});
    const SymmetricTensor shared(tensor, kGroup);
    EXPECT_EQ(shared.provider(), name);
    const std::string who = "'" + name + "' has no ";
    expect_raises<c10::NotImplementedError>([&] { shared.contiguous_view(); },
                                            {who + "contiguous view; native can"});
    if (name == "cuda") return;
    expect_raises<c10::NotImplementedError>([&] { shared.barrier(); },
                                            {who + "barrier; native and cuda can"});
    if (name == "nccl") return;
    const std::vector<std::string> words = {who + "signals; native and cuda and nccl can"};
    expect_raises<c10::NotImplementedError>([&] { shared.put_signal(0); }, words);
    expect_raises<c10::NotImplementedError>([&] { shared.wait_signal(0); }, words);
  });
}

TEST(MemoryProviderTest, WhatAProviderCannotDoNamesThoseThatCan) {
  expect_refusals("cuda", "CUDA");
  expect_refusals("nccl", "NCCL");
  expect_refusals("nvshmem", "NVSHMEM");
}

}  // namespace
}  // namespace symm::test
