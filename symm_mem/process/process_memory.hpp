// Reading the memory of another process of this user, in one copy and without its help.
//
// Linux permits it to whom it would permit to trace the process: not across users, not into another
// pid namespace, not where a filter of system calls or a security module says no. So it is tried
// before it is relied on: a process offers a word that nobody else has, and a peer reads it.
//
// All functions are local, thread safe and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "symm_mem/process/process_identity.hpp"

namespace symm {

// A word of this process's memory to try a read with. The same in every call; a forked child has
// its parent's.
struct MemoryProbe {
  std::uint64_t address = 0;
  std::uint64_t word = 0;  // random
};
MemoryProbe own_memory_probe();

// Copies `bytes` at `address` of process `pid` to `destination`. 0, or the errno of the refusal:
// EPERM (not permitted), ESRCH (no such process), EFAULT (not mapped there, or memory of a device);
// `destination` may then have been written in part. Bytes that the owner changes meanwhile may come
// old or new; who reads looks afterwards whether they hold.
int read_process_memory(std::int64_t pid, std::uint64_t address, void* destination,
                        std::size_t bytes);

// Whether a peer's read of this memory could succeed, as far as its two ends show: memory that a
// device driver has mapped cannot be read so, although its owner can.
bool is_readable_by_peers(const void* data, std::size_t bytes);

// Lets every process of this user read, and trace, this one, where the Yama module forbids that to
// processes other than its parents; else it does nothing.
void permit_reads_by_peers();

}  // namespace symm
