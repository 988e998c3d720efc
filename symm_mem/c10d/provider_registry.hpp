// What the memory providers are, and their use by whoever allocates and maps symmetric memory. The
// choice among them is memory_provider()'s.
//
// Thread safe; local except rendezvous(). Throws Error, except require().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <functional>
#include <string>

namespace symm {

// What a provider has, apart from memory that peers can map.
struct MemoryProvider {
  const char* name;
  const char* torch_name;  // for c10d::symmetric_memory::set_backend()
  bool on_cpu;
  bool any_backend;  // serves groups whatever their backend is
  bool signals;      // between two ranks; of "nccl" from NCCL 2.29 on
  bool barrier;
  bool views;         // contiguous ones over all ranks
  bool groups_known;  // knows which groups have mapped a tensor's memory

  using Capability = bool MemoryProvider::*;
};

// The one that is chosen, or would be chosen by the next allocation.
const MemoryProvider& current_memory_provider();

// Raises c10::NotImplementedError, which names the providers that can, unless `provider` can do
// `what`.
void require(const MemoryProvider& provider, MemoryProvider::Capability capability,
             const std::string& what, const std::string& caller);

// Runs `allocate` with the provider selected in PyTorch; once it has returned, the choice is final.
// The choice is locked meanwhile, so a caller may not hold Python's interpreter lock, which
// `allocate` may take.
void allocate_from_provider(c10::Device device, const std::string& caller,
                            const std::function<void()>& allocate);

// The group that c10d knows by this name. Throws Error(kInvalidArgument) where there is none.
c10::intrusive_ptr<c10d::ProcessGroup> group_named(const std::string& name,
                                                   const std::string& caller);

// PyTorch's handle of the memory of `tensor` in the group, after what its provider needs of a group
// first. Null where the memory is none that can be shared. Collective, blocks, the first time for
// this memory and group.
c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
    const at::Tensor& tensor, const std::string& group_name, const std::string& caller);

}  // namespace symm
