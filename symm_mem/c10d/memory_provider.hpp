// Who makes symmetric memory in a LibTorch program: symm itself, or an allocator of PyTorch.
//
// The rules are those of torch_symm.memory_provider(). PyTorch keeps one allocator for each type of
// device and exchanges none once memory was allocated, so a provider is a choice of the process:
// made before the first allocation by memory_provider(), by SYMM_MEMORY_PROVIDER, or not at all,
// which means "native". The choice is selected in PyTorch too. There is one record of it in the
// process, which Python's torch_symm reads and writes as well.
//
// Local, thread safe, under no graph capture. Wrong names raise c10::ValueError, everything else
// c10::NotImplementedError; a call that raises changes nothing and can be made again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace symm {

// Chooses "native" (symm; CPU and CUDA), or "cuda", "nccl" or "nvshmem" (PyTorch's, for CUDA), and
// returns the name in force; without `name` it only returns that. A name that is not known raises
// and lists those that are; so does one that this LibTorch has not, with those that it has, and
// another one than that of the first allocation.
std::string memory_provider(const std::optional<std::string>& name = std::nullopt);

struct MemoryProviderChoice {
  std::string name;   // "" where nobody has chosen yet
  bool used = false;  // memory was allocated, so that the choice stands
};

MemoryProviderChoice memory_provider_choice();

// For a part of the program that selects in PyTorch by itself, after it has done so. Raises where
// another provider is in use.
void record_memory_provider(const std::string& name, bool used);

// Every known provider with the reason why it cannot be chosen now, "" where it can. Asks PyTorch
// by choosing each for a moment, so no other thread may allocate symmetric memory meanwhile.
std::map<std::string, std::string> providers();

// What a provider has, apart from memory that peers can map.
struct MemoryProvider {
  const char* name;
  const char* torch_name;  // for c10d::symmetric_memory::set_backend()
  bool on_cpu;
  bool signals;  // between two ranks
  bool barrier;
  bool views;  // contiguous ones over all ranks

  using Capability = bool MemoryProvider::*;
};

const MemoryProvider& current_memory_provider();

// Raises, and names the providers that can, unless `provider` can do `what`.
void require(const MemoryProvider& provider, MemoryProvider::Capability capability,
             const std::string& what, const std::string& caller);

// Runs `allocate` with the provider selected; once it has returned, the choice stands. Throws
// Error.
at::Tensor allocate_from_provider(c10::Device device, const std::string& caller,
                                  const std::function<at::Tensor()>& allocate);

}  // namespace symm
