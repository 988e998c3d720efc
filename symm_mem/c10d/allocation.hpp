// Allocations that PyTorch programs made through the symmetric-memory API, and storages of other
// allocators that were registered as user buffers; and what both become in a group.
//
// NOTE [Parts of an allocation]
// An allocation is one LocalSegment, which the buffer fills but for the rest of its last granule.
// It may join several groups, and gets a signal pad in each of them, out of the group's pad
// segments (NOTE [Pad segments]): slots are counted by each group's ranks and would be confused. So
// it is with a user buffer (NOTE [Lifetime of user buffers]).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "symm_mem/c10d/channel_order.hpp"
#include "symm_mem/c10d/group_links.hpp"
#include "symm_mem/c10d/registered_storage.hpp"
#include "symm_mem/group/host_signals.hpp"
#include "symm_mem/group/signal_pad_pool.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

// One allocation as the ranks of one group share it. Immutable; keeps the memory alive, its own and
// the peers'. Memory of a GPU is given back when the device has stopped using it.
class SharedAllocation {
 public:
  struct Layout {
    std::size_t buffer_bytes = 0;  // as asked for
    std::size_t pad_bytes = 0;
  };

  SharedAllocation(std::shared_ptr<GroupLink> link, c10::Device device, std::uint64_t id,
                   const Layout& layout, std::shared_ptr<Segment> buffers, SignalPadPool::Pad pad);
  ~SharedAllocation();
  SharedAllocation(const SharedAllocation&) = delete;
  SharedAllocation& operator=(const SharedAllocation&) = delete;

  GroupLink& link() const { return *link_; }
  c10::Device device() const { return device_; }
  std::uint64_t id() const { return id_; }  // the same on every rank; never used twice by a link
  const Layout& layout() const { return layout_; }
  const std::shared_ptr<Segment>& buffers() const { return buffers_; }

  // By rank. The tables are on the device, where a kernel reads them.
  const std::vector<void*>& buffer_pointers() const { return buffer_pointers_; }
  void** buffer_table() const;
  void** pad_table() const;
  int* global_rank_table() const;

  SignalPads signal_pads() const { return {pads_by_rank_, layout_.pad_bytes}; }
  // Of memory on the host.
  HostSignals& host_signals() { return *host_signals_; }
  // Of memory on a GPU.
  SignalKernels& signal_kernels() { return signals_->kernels(); }
  ChannelOrder& channel_order() { return *channel_order_; }

 private:
  const std::shared_ptr<GroupLink> link_;
  const c10::Device device_;
  const std::uint64_t id_;
  const Layout layout_;
  std::shared_ptr<Segment> buffers_;
  std::shared_ptr<Segment> pads_;  // the pad is in use while they are held
  std::vector<void*> buffer_pointers_;
  at::Tensor tables_;  // int64 [2, world_size]: buffers, pads
  at::Tensor ranks_;   // int32 [world_size]
  std::optional<HostSignals> host_signals_;
  std::vector<std::byte*> pads_by_rank_;
  DeviceSignals* signals_ = nullptr;  // the link's, on a GPU
  std::shared_ptr<ChannelOrder> channel_order_;
  const std::uint32_t fork_generation_;
};

class Allocation {
 public:
  // Local. Throws Error(kSystem); kUnsupported for a device that has no symmetric memory.
  Allocation(std::size_t bytes, c10::Device device, std::optional<std::string> group_name);
  // Local. Registers a storage of another allocator, all of which `memory` backs.
  Allocation(const c10::Storage& storage, ChunkedMemory memory);
  ~Allocation();

  std::byte* base() const { return segment_->base(); }
  std::size_t bytes() const { return layout_.buffer_bytes; }
  c10::Device device() const { return device_; }
  const std::optional<std::string>& group_name() const { return group_name_; }
  bool contains(const void* pointer) const;
  // Groups that have ended count until the next rendezvous of this memory.
  bool has_joined_a_group() const;

  bool is_user_buffer() const { return storage_ != nullptr; }
  // False once a user buffer is gone or its addresses were given to other memory.
  bool still_there() const { return !storage_ || storage_->still_there(); }
  // Of a user buffer: that is so from now on.
  void retire() { storage_->retire(); }
  // Of a user buffer: whether `found` is the memory that was registered.
  bool is_backed_by(const ChunkedMemory& found) const;

  // What this allocation is in the group of that name. Collective: all ranks must call it for the
  // group in the same order. Where every rank has it already, all get what they had; else all make
  // it anew, in two rounds, or four where the group has no pad left. `symmetric`: registered for
  // symmetric use by the group's collectives (Communicator::add_segment), where its backend is
  // symm; the same on every rank. Blocks. Throws Error, and what c10d throws for an unknown group.
  std::shared_ptr<SharedAllocation> share(const std::string& group_name, bool symmetric = false);

  // The same without asking the peers: null where this rank has not got it.
  std::shared_ptr<SharedAllocation> shared_with(const c10d::ProcessGroup* group) const;

  // The handle at `offset`, made by the first call for it.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> handle(
      const std::shared_ptr<SharedAllocation>& shared, std::size_t offset);

 private:
  using Handle = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;
  struct Membership {
    std::shared_ptr<SharedAllocation> shared;
    std::map<std::size_t, Handle> handles;  // by offset
  };

  // `made` in place of `before`, which may be null.
  void replace_membership(const std::shared_ptr<SharedAllocation>& before,
                          const std::shared_ptr<SharedAllocation>& made);
  void forget_destroyed_groups();

  const c10::Device device_;
  const std::optional<std::string> group_name_;
  SharedAllocation::Layout layout_;
  const std::shared_ptr<RegisteredStorage> storage_;  // null where it is no user buffer
  std::shared_ptr<LocalSegment> segment_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Membership> memberships_;
};

// The allocations of this process, by address. Local, thread safe.
std::shared_ptr<Allocation> allocate(std::size_t bytes, c10::Device device,
                                     std::optional<std::string> group_name);
// A one-dimensional uint8 tensor of `bytes` zeros in such memory, whatever provider the process has
// chosen. Cold: not under graph capture, and the end of memory on a GPU waits for the device.
at::Tensor allocate_bytes(std::int64_t bytes, c10::Device device);
// The allocation, or the user buffer that is still there, in whose buffer `pointer` lies;
// null where there is none.
std::shared_ptr<Allocation> find_allocation(const void* pointer);
// False where no allocation starts at `base`.
bool free_allocation(const void* base);
// Lets find_allocation() find a user buffer. What is at the same addresses is retired.
void add_user_buffer(std::shared_ptr<Allocation> buffer);

}  // namespace symm
