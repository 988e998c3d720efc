// PyTorch's handle of an allocation in a group: torch.distributed._symmetric_memory's rendezvous()
// returns it.
//
// Pointers are to the start of the ranks' allocations; get_offset() is the offset, in its
// allocation, of the pointer that this rank passed to the rendezvous. Everything is local except
// barrier(). Thread safe, where each thread that signals on the host has a channel of its own; on a
// GPU those on one channel are ordered (channel_order.hpp). A multicast pointer is null where there
// is none.
//
// NOTE [Signals of handles]
// On the host barrier(), put_signal() and wait_signal() return when they are done. On a GPU they
// are operations on the current stream, which may be captured; a wait that has failed is raised by
// the next operation of the group there. A time-out of 0 is that of the group. Rank and channel out
// of range raise ValueError, other failures DistBackendError that names the ranks.
//
// Once the group has been destroyed, or has failed, its signals raise DistBackendError; the memory
// of all ranks stays mapped, to be read and written, for as long as the handle lives.
#pragma once

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "symm_mem/c10d/allocation.hpp"

namespace symm {

c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> make_handle(
    std::shared_ptr<SharedAllocation> shared, std::size_t offset);

// For operators on a GPU: calls `launch` with what the handle signals by, the current stream, the
// channel and the time-out of the group. Throws as the signals of handles do, and
// c10::NotImplementedError for a handle of another provider.
using GpuLaunch =
    std::function<void(SignalKernels&, const SignalPads&, const SignalOptions& options)>;
void launch_with_signals(c10d::symmetric_memory::SymmetricMemory& handle, int channel,
                         const GpuLaunch& launch);

// What the ranks said when they made no multicast object; "" where there is one, and for a handle
// of another provider.
std::string why_no_multicast(const c10d::symmetric_memory::SymmetricMemory& handle);

}  // namespace symm
