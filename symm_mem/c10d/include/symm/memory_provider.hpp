// The provider of symmetric memory: symm itself, or an allocator of PyTorch.
//
// PyTorch has one allocator for each type of device and does not replace it once memory was
// allocated, so the provider is one for the process. memory_provider() or SYMM_MEMORY_PROVIDER
// chooses it before the first allocation; without either it is "native". PyTorch's own API then
// allocates from it too. torch_symm.memory_provider() and torch_symm.providers() of Python are
// these functions.
//
// Local, thread safe, under no graph capture. Unknown names raise c10::ValueError, everything else
// c10::NotImplementedError; a call that raises changes nothing and can be made again.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace symm {

// Chooses "native" (symm; CPU and CUDA), "cuda", "nccl" or "nvshmem" (PyTorch's, for CUDA), and
// returns the name in force; without `name` it only returns that. Raises for an unknown name, with
// the known ones; for one that this PyTorch lacks, with those that it has; and for another one
// than that of the first allocation.
std::string memory_provider(const std::optional<std::string>& name = std::nullopt);

// Every known provider with the reason why it cannot be used here, "" where it can.
std::map<std::string, std::string> providers();

}  // namespace symm
