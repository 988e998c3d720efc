// What carries a group's bytes between hosts: a c10d backend of another library.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace symm {

// The engines of this process, by name. Functions of any thread, without Python's interpreter lock.
struct InterHostEngines {
  // Why a group cannot use the engine `name` ("gloo") for tensors on the CPU; "" where it can.
  // Local.
  std::string (*problem)(const std::string& name);
  // A backend over all ranks of a group; `store` is its own. Collective. May throw.
  c10::intrusive_ptr<c10d::Backend> (*make)(const std::string& name,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);
  // Whether send and recv of the engine `name` have done with their tensor's memory once their Work
  // has been destroyed, whatever has become of the message: collectives then send from and receive
  // into the user's tensors. Null: of no engine. Local.
  bool (*releases_memory)(const std::string& name) = nullptr;
};

// Before the first group over several hosts. The Python package knows every backend that
// torch.distributed does; a program without Python gives its own.
void set_inter_host_engines(const InterHostEngines& engines);

}  // namespace symm
