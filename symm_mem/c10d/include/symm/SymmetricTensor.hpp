// One object for a tensor that all ranks of a group share, whoever provides the memory. Python's
// torch_symm.SymmetricTensor is this class.
//
// Groups are named as in c10d::register_process_group(); ranks are group ranks. What is collective
// says so, blocks, and must come in one order on all ranks. Thread safe, where each thread that
// signals has a channel of its own. The memory stays mapped as long as a copy of the object lives.
//
// Wrong arguments raise c10::ValueError. What the provider cannot do raises
// c10::NotImplementedError that names the providers that can. Failures of peers and time-outs are
// the provider's own exceptions, with "native" c10::DistBackendError.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace symm {

struct MemoryProvider;

class SymmetricTensor {
 public:
  // None means the time-out of the group; less than a millisecond counts as one.
  using Timeout = std::optional<std::chrono::milliseconds>;

  // Allocates, with dtype and device of `options`, and shares the result; the values are undefined.
  // Tensors without dimensions or without elements are legal. Collective; every rank must ask for
  // as many bytes. Not under graph capture.
  static SymmetricTensor empty(c10::IntArrayRef sizes, const c10::TensorOptions& options,
                               const std::string& group_name);

  // Shares `tensor`, which must be contiguous, in memory of the provider, and at the same place of
  // its allocation on every rank. Collective; the first time for its memory not under capture.
  SymmetricTensor(at::Tensor tensor, std::string group_name);

  const at::Tensor& local() const { return local_; }
  int rank() const { return handle_->get_rank(); }
  int world_size() const { return handle_->get_world_size(); }
  // The name of the memory provider, as memory_provider() returns it.
  std::string provider() const;

  // PyTorch's handle, for kernels: pointers by rank, signal pads, tables on the device.
  const c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>& handle() const {
    return handle_;
  }

  // The tensor of `rank`, to be read and written here. Local. It does not keep the memory mapped.
  at::Tensor remote(int rank) const;
  // The signal pad of `rank`, as uint32. Leave it zero. Local.
  at::Tensor signal_pad(int rank) const;

  // Waits for all ranks; what they wrote before is seen after. On the CPU done on return, on a GPU
  // an operation of the current stream. Collective.
  void barrier(int channel = 0, Timeout timeout = std::nullopt) const;
  // Signals `rank` that it can read what this rank wrote before. Waits until `rank` has taken the
  // signal before this one. As barrier() otherwise.
  void put_signal(int rank, int channel = 0, Timeout timeout = std::nullopt) const;
  // Waits for the signal of `rank` and takes it. As barrier() otherwise.
  void wait_signal(int rank, int channel = 0, Timeout timeout = std::nullopt) const;

  // The address, on the device, at which a store reaches every rank's tensor. Never null: raises
  // where there is none. Local.
  void* multicast_pointer() const;

  // All ranks' tensors as one, [world_size, *sizes]; see contiguous_view.hpp. Collective.
  at::Tensor contiguous_view() const;

 private:
  void check_rank(int rank, const char* caller) const;
  std::int64_t offset_bytes() const;

  at::Tensor local_;
  std::string group_name_;
  const MemoryProvider* provider_;
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> handle_;
};

}  // namespace symm
