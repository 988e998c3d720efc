// Who makes symmetric memory: symm itself, or an allocator of PyTorch.
//
// PyTorch keeps one allocator for each type of device and exchanges none once memory was allocated,
// so a provider is a choice of the process: made before the first allocation by memory_provider(),
// by SYMM_MEMORY_PROVIDER, or not at all, which means "native". The choice is selected in PyTorch
// too. torch_symm.memory_provider() and torch_symm.providers() of Python are these functions.
//
// Local, thread safe, under no graph capture. Unknown names raise c10::ValueError, everything else
// c10::NotImplementedError; a call that raises changes nothing and can be made again.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace symm {

// Chooses "native" (symm; CPU and CUDA), or "cuda", "nccl" or "nvshmem" (PyTorch's, for CUDA), and
// returns the name in force; without `name` it only returns that. A name that is not known raises
// and lists those that are; so does one that this PyTorch has not, with those that it has, and
// another one than that of the first allocation.
std::string memory_provider(const std::optional<std::string>& name = std::nullopt);

// Every known provider with the reason why it cannot be used here, "" where it can.
std::map<std::string, std::string> providers();

}  // namespace symm
