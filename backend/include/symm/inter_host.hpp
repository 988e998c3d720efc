// What carries a group's bytes between hosts: a c10d backend of another library.
#pragma once

#include <c10/core/Device.h>
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
  // As problem and make, for an engine of CUDA tensors between the GPU `device` of this process and
  // those of other ranks. Its send and recv are ordered by the calling thread's current stream, and
  // return before they are done; wait() of their Works orders that stream behind them; it must not
  // end the process when it fails. Null: CUDA tensors cross hosts by the engine of the CPU.
  std::string (*gpu_problem)(const std::string& name) = nullptr;
  c10::intrusive_ptr<c10d::Backend> (*make_for_gpu)(const std::string& name,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout,
                                                    c10::Device device) = nullptr;
};

// Those of this process; null before the next call. Local.
const InterHostEngines* inter_host_engines();

// Before the first group over several hosts. The Python package knows every backend that
// torch.distributed does; a program without Python gives its own.
void set_inter_host_engines(const InterHostEngines& engines);

}  // namespace symm
