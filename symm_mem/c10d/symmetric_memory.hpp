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

#include "symm_mem/c10d/allocation.hpp"

namespace symm {

c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> make_handle(
    std::shared_ptr<SharedAllocation> shared, std::size_t offset);

}  // namespace symm
