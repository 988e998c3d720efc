// The choice of who makes symmetric memory: really, once, and without half a choice.
#include <symm/memory_provider.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <array>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <symm/SymmetricTensor.hpp>
#include "symm_mem/c10d/contiguous_view.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/provider_registry.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "test/libtorch/expect_raises.hpp"
#include "test/libtorch/group_ranks.hpp"
#include "test/libtorch/torch_stand_ins.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {
namespace {

namespace torch_memory = c10d::symmetric_memory;

const std::vector<std::pair<std::string, std::string>> kProviders = {
    {"native", "SYMM"}, {"cuda", "CUDA"}, {"nccl", "NCCL"}, {"nvshmem", "NVSHMEM"}};

SymmetricTensor allocate_one() {
  return SymmetricTensor::empty({3}, torch::dtype(torch::kFloat), kGroup);
}

void allocate_nothing(c10::Device device) {
  allocate_from_provider(device, "empty", [] {});
}

// An allocation on `device` that must be refused before it is made.
void expect_refused(c10::Device device, const std::vector<std::string>& words) {
  const auto allocate = [&] {
    allocate_from_provider(device, "empty", [] { ADD_FAILURE() << "the allocation went on"; });
  };
  expect_error(error_of(allocate), ErrorCode::kUnsupported, words);
}

void expect_not_chosen(const std::string& name, const std::vector<std::string>& words) {
  expect_raises<c10::NotImplementedError>([&] { memory_provider(name); }, words);
}

TEST(MemoryProviderTest, UnknownNamesRaiseAndListTheKnownOnes) {
  run_ranks(1, [](int) {
    const std::string known = "native, cuda, nccl, nvshmem";
    for (const std::string name : {"", "NCCL", "x"}) {
      expect_raises<c10::ValueError>([&] { memory_provider(name); }, {known, "'" + name + "'"});
    }
    const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "ncl");
    const std::vector<std::string> words = {"SYMM_MEMORY_PROVIDER", known, "'ncl'"};
    expect_raises<c10::ValueError>([] { memory_provider(); }, words);
    expect_raises<c10::ValueError>([] { allocate_one(); }, words);
    EXPECT_EQ(memory_provider("native"), "native");  // does not look at the variable
  });
}

TEST(MemoryProviderTest, AChoiceIsSelectedInTorch) {
  for (const auto& [name, torch_name] : kProviders) {
    run_ranks(1, [&, name = name, torch_name = torch_name](int) {
      give_torch({"CUDA", "NCCL", "NVSHMEM"});
      EXPECT_EQ(memory_provider(name), name);
      EXPECT_EQ(selected_in_torch(), torch_name);
      EXPECT_EQ(memory_provider(), name);
      allocate_from_provider(kGpu, "empty", [&] {
        EXPECT_EQ(current_memory_provider().name, name);
        EXPECT_EQ(memory_provider(), name);  // a call inside an allocation is none too many
      });
      EXPECT_EQ(selected_in_torch(), torch_name);
    });
  }
}

TEST(MemoryProviderTest, TheDefaultIsSelectedInTorchToo) {
  for (const c10::Device device : {c10::Device(c10::kCPU), kGpu}) {
    run_ranks(1, [&](int) {
      give_torch({"CUDA"});
      allocate_from_provider(device, "empty", [] { EXPECT_EQ(selected_in_torch(), "SYMM"); });
      expect_not_chosen("cuda", {"'native' is in use"});
    });
  }
}

TEST(MemoryProviderTest, TheEnvironmentChooses) {
  run_ranks(1, [](int) {
    give_torch({"CUDA", "NCCL"});
    const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "nccl");
    EXPECT_EQ(memory_provider(), "nccl");
    allocate_nothing(kGpu);
    EXPECT_EQ(selected_in_torch(), "NCCL");
    expect_not_chosen("cuda", {"'nccl' is in use"});
  });
}

TEST(MemoryProviderTest, AChoiceMayChangeUntilTheFirstAllocation) {
  run_ranks(1, [](int) {
    give_torch({"CUDA", "NCCL", "NVSHMEM"});
    for (const auto& [name, torch_name] :
         {kProviders[2], kProviders[1], kProviders[0], kProviders[3]}) {
      EXPECT_EQ(memory_provider(name), name);
      EXPECT_EQ(selected_in_torch(), torch_name);
    }
    allocate_nothing(kGpu);
    for (const std::string name : {"native", "cuda", "nccl"}) {
      expect_not_chosen(name, {"'nvshmem' is in use", "'" + name + "' cannot be chosen"});
    }
    EXPECT_EQ(memory_provider("nvshmem"), "nvshmem");
    EXPECT_EQ(memory_provider(), "nvshmem");
  });
}

TEST(MemoryProviderTest, TheChoiceStandsFromTheFirstAllocationOn) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");
    EXPECT_EQ(memory_provider("native"), "native");
    allocate_one().local().fill_(1);
    expect_not_chosen("cuda", {"'native' is in use", "'cuda' cannot be chosen"});
    EXPECT_EQ(memory_provider("native"), "native");
    EXPECT_EQ(memory_provider(), "native");
  });
}

TEST(MemoryProviderTest, WhatTorchLacksNamesWhatItHas) {
  run_ranks(1, [](int) {
    give_torch({"CUDA", "NCCL"});
    nvshmem_is_there = false;
    expect_not_chosen("nvshmem", {"'nvshmem' cannot be used here: this torch does not find NVSHMEM",
                                  "usable: native, cuda, nccl"});
    const auto found = providers();
    EXPECT_EQ(found.size(), 4u);
    EXPECT_EQ(found.at("native") + found.at("cuda") + found.at("nccl"), "");
    EXPECT_NE(found.at("nvshmem"), "");
    nccl_version = 0;
    EXPECT_EQ(providers().at("nccl"), "this torch was built without NCCL");
    expect_not_chosen("nccl", {"'nccl' cannot be used here: this torch was built without NCCL",
                               "usable: native, cuda"});
    EXPECT_EQ(memory_provider(), "native");
    EXPECT_EQ(selected_in_torch(), "CUDA");
  });
}

TEST(MemoryProviderTest, WhatTorchRefusesLeavesTheChoiceAndCanBeTriedAgain) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_not_chosen("nccl", {"torch refuses the memory provider 'nccl' (NCCL) and keeps CUDA: ",
                                 "backend NCCL"});
      EXPECT_EQ(memory_provider(), "cuda");
      EXPECT_EQ(selected_in_torch(), "CUDA");
    }
    offer("NCCL");
    EXPECT_EQ(memory_provider("nccl"), "nccl");
    EXPECT_EQ(selected_in_torch(), "NCCL");
    expect_refused(c10::kCPU, {"'nccl' has no memory on cpu; providers that have: native"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");
  });
}

TEST(MemoryProviderTest, AChoiceThatTorchIgnoresIsAnError) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    torch_memory::register_availability("NCCL", c10::make_intrusive<StandInAllocator>("CUDA"));
    expect_not_chosen("nccl", {"torch keeps CUDA although NCCL was selected"});
    EXPECT_EQ(memory_provider(), "native");
  });
}

TEST(MemoryProviderTest, AnAllocationThatFailsLeavesTheChoiceOpen) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    const auto fail = [] { allocate_from_provider(kGpu, "empty", [] { throw std::bad_alloc(); }); };
    EXPECT_THROW(fail(), std::bad_alloc);
    EXPECT_EQ(memory_provider("cuda"), "cuda");
  });
}

TEST(MemoryProviderTest, MemoryThatTorchHasInUseWithAnotherIsAnError) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    torch_memory::get_allocator(c10::kCUDA);  // as an allocation does
    expect_refused(kGpu,
                   {"empty: torch refuses the memory provider 'native' (SYMM) and keeps CUDA"});
    EXPECT_EQ(memory_provider("cuda"), "cuda");
  });
}

TEST(MemoryProviderTest, TheDefaultDoesNotOverrideAChoiceMadeInTorch) {
  run_ranks(1, [](int) {
    give_torch({"NCCL"});
    expect_raises<c10::NotImplementedError>([] { allocate_one(); },
                                            {"was set to NCCL", "'native'", "by default"});
    expect_refused(kGpu, {"was set to NCCL"});
    EXPECT_EQ(selected_in_torch(), "NCCL");
    {
      const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "native");
      allocate_from_provider(kGpu, "empty", [] { EXPECT_EQ(selected_in_torch(), "SYMM"); });
    }
    EXPECT_EQ(allocate_one().provider(), "native");
  });
  run_ranks(1, [](int) {
    give_torch({"NCCL"});
    EXPECT_EQ(memory_provider("nccl"), "nccl");
    allocate_from_provider(kGpu, "empty",
                           [] { EXPECT_EQ(current_memory_provider().name, std::string("nccl")); });
  });
}

TEST(MemoryProviderTest, TheLibraryForGpusIsMissing) {
  if (device_library_problem(DeviceKind::kCuda).empty()) GTEST_SKIP() << "it is there";
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    set_device_library(DeviceKind::kCuda, nullptr);
    expect_refused(kGpu, {"empty: device: symm cannot use cuda memory"});
    allocate_nothing(c10::kCPU);
    EXPECT_EQ(selected_in_torch(), "CUDA");  // what torch has on GPUs is left alone
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
    if (name == "nccl") {
      shared.put_signal(0);
      shared.wait_signal(0);
      nccl_version = std::uint64_t{2} << 32 | 28 << 16;
    }
    const std::string able = name == "nccl" ? "native and cuda" : "native and cuda and nccl";
    const std::vector<std::string> words = {who + "signals; " + able + " can"};
    expect_raises<c10::NotImplementedError>([&] { shared.put_signal(0); }, words);
    expect_raises<c10::NotImplementedError>([&] { shared.wait_signal(0); }, words);
  });
}

TEST(MemoryProviderTest, WhatAProviderCannotDoNamesThoseThatCan) {
  expect_refusals("cuda", "CUDA");
  expect_refusals("nccl", "NCCL");
  expect_refusals("nvshmem", "NVSHMEM");
}

TEST(MemoryProviderTest, NcclServesGroupsOfNcclOnly) {
  run_ranks(1, [](int) {
    give_torch({"NCCL"});
    memory_provider("nccl");
    std::array<float, 3> memory{};
    expect_raises<c10::NotImplementedError>(
        [&] { SymmetricTensor(on_gpu(memory.data(), 0, 3), kGroup); },
        {"SymmetricTensor: group: the memory provider 'nccl' serves groups whose backend is nccl, "
         "got 'test_group' with no backend for cuda; native and cuda serve any"});
  });
}

// What PyTorch's allocator has allocated counts as symmetric; who has mapped it is not guessed.
TEST(MemoryProviderTest, MemoryOfAnotherProvider) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    const StandInPtr allocator = offer("CUDA");
    offer("NCCL");
    memory_provider("nccl");
    memory_provider("cuda");
    std::array<float, 10> memory{};
    std::array<float, 10> ordinary{};
    allocator->allocations.insert(memory.data());
    const at::Tensor plain = on_gpu(ordinary.data(), 0, 10);
    EXPECT_FALSE(is_symmetric(plain, std::nullopt));
    EXPECT_FALSE(is_symmetric(plain, kGroup));
    EXPECT_EQ(place_of(plain), std::nullopt);
    expect_raises<c10::ValueError>(
        [&] { SymmetricTensor(plain, kGroup); },
        {"in memory of the provider 'cuda'", "got shape [10] in ordinary memory on cuda:0"});
    expect_raises<c10::NotImplementedError>([&] { contiguous_view(plain, kGroup); },
                                            {"'cuda' has no contiguous view; native can"});
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
    const at::Tensor known = on_gpu(memory.data(), 3, 4);
    EXPECT_TRUE(is_symmetric(known, std::nullopt));
    EXPECT_EQ(place_of(known), std::pair(std::int64_t{12}, std::int64_t{28}));
    expect_raises<c10::NotImplementedError>(
        [&] { is_symmetric(known, kGroup); },
        {"'cuda' has no record of the groups of its memory; native can"});
#endif
  });
}

// A handle is that of an allocation, which its multicast pointer belongs to.
TEST(MemoryProviderTest, AMulticastPointerIsThatOfTheTensor) {
  run_ranks(1, [](int) {
    give_torch({"CUDA"});
    const StandInPtr allocator = offer("CUDA");
    offer("NCCL");
    memory_provider("nccl");
    memory_provider("cuda");
    std::array<float, 10> memory{};
    allocator->allocations.insert(memory.data());
    const SymmetricTensor without(on_gpu(memory.data(), 3, 4), kGroup);
    expect_raises<c10::NotImplementedError>(
        [&] { without.multicast_pointer(); },
        {"'cuda' has made no multicast object for this memory on cuda:0"});
    allocator->multicast = 4096;
    const auto pointer = [&](std::int64_t start, std::int64_t count) {
      const SymmetricTensor shared(on_gpu(memory.data(), start, count), kGroup);
      return reinterpret_cast<std::uintptr_t>(shared.multicast_pointer());
    };
    EXPECT_EQ(pointer(3, 4), 4096u + 256 + 12);
    EXPECT_EQ(pointer(3, 0), 4096u);
  });
}

}  // namespace
}  // namespace symm::test
