// The chosen memory provider, as this library's own code uses it; memory_provider.hpp has the
// rules.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <symm/memory_provider.hpp>

namespace symm {

struct MemoryProviderChoice {
  std::string name;   // "" where nobody has chosen yet
  bool used = false;  // memory was allocated, so that the choice stands
};

MemoryProviderChoice memory_provider_choice();

// For a part of the program that selects in PyTorch by itself, after it has done so. Raises where
// another provider is in use.
void record_memory_provider(const std::string& name, bool used);

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
