// PyTorch's handle of an allocation in a group: torch.distributed._symmetric_memory's rendezvous()
// returns it.
//
// Pointers are to the start of the ranks' allocations; get_offset() is the offset, in its
// allocation, of the pointer that this rank passed to the rendezvous. Everything is local except
// barrier(). Thread safe, where each thread that signals has a channel of its own.
//
// NOTE [Signals of handles]
// On the host barrier(), put_signal() and wait_signal() return when they are done. On a GPU they
// are operations on the current stream, which may be captured; a wait that has failed is raised by
// the next operation of the group there. A time-out of 0 is that of the group. Rank and channel out
// of range raise ValueError, other failures DistBackendError that names the ranks.
//
// Once the group has been destroyed, or its connections have failed, everything but sizes and ranks
// raises DistBackendError.
#pragma once

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <memory>
#include <vector>

#include "symm_mem/c10d/allocation.hpp"

namespace symm {

class SymmetricMemoryHandle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  SymmetricMemoryHandle(std::shared_ptr<SharedAllocation> shared, std::size_t offset)
      : shared_(std::move(shared)), offset_(offset) {}

  const std::shared_ptr<SharedAllocation>& shared() const { return shared_; }

  std::vector<void*> get_buffer_ptrs() override;
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override;
  void** get_signal_pad_ptrs_dev() override;
  std::size_t get_buffer_size() override { return shared_->layout().buffer_bytes; }
  // Of this allocation. Virtual in some versions of torch, hence without a specifier.
  // NOLINTNEXTLINE(modernize-use-override)
  std::size_t get_signal_pad_size() { return shared_->layout().pad_bytes; }
  std::size_t get_offset() override { return offset_; }

  bool has_multicast_support() override;
  // NotImplementedError that says why where there is none; never null.
  void* get_multicast_ptr() override;

  void barrier(int channel, std::size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override;

  int get_rank() override { return shared_->buffers()->rank(); }
  int get_world_size() override { return shared_->buffers()->world_size(); }
  c10::Device get_device() override { return shared_->device(); }
  const std::vector<int>& get_rank_to_global_rank() override;
  int* get_rank_to_global_rank_dev() override;
  // Groups are on one host, where every rank maps every other's memory.
  bool world_within_direct_access() override { return true; }

 private:
  void check_usable() const;

  const std::shared_ptr<SharedAllocation> shared_;
  const std::size_t offset_;
};

}  // namespace symm
