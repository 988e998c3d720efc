// The ordinary memory of a group's ranks, read by their peers.
//
// NOTE [Reading a peer's process]
// A tensor that is not in a segment is at an address of its owner's process alone. Where every rank
// of a group can read every other's process, the owner tells the address in place of a copy, and
// the reader copies once, straight into its output. A group has this or has it not: every rank
// tries a word of every other's, and all tell all what came of it. It is used where a rank asks for
// it: two copies through slots are the faster ones (docs/benchmarks.md, "One copy by
// process_vm_readv").
//   - The owner keeps its memory until the reader has said that it is done, or gives up; a look
//     at the owner follows every read and comes before anything that tells of it, as for memory
//     that is read in place (NOTE [Memory of a rank that gives up] in local_group.hpp).
//   - A pid is used again, so the look asks also whether the owner's process has ended: its
//     connection closes before its pid can be free. Bytes of a stranger are never passed on.
//   - A read that the system refuses says nothing yet of why; the look does, or the owner is there
//     and the memory cannot be read.
// Ranks that are threads of one process read it in the same way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/process_memory.hpp"

namespace symm {

class PeerMemory {
 public:
  // `group` must outlive the object, which does not read before probe().
  explicit PeerMemory(const LocalGroup& group) : group_(group) {}

  struct Refusal {
    int reader;
    int owner;
    int error;  // errno; 0: another process has the owner's pid there
  };
  // Collective: one metadata exchange. Reads the word that each rank offers. The result, and
  // is_used() from then on, is the same on every rank: nullopt where all can read all. Throws as
  // LocalGroup::exchange_metadata.
  std::optional<Refusal> probe(LocalGroup& group, std::span<const MemoryProbe> offers,
                               std::chrono::milliseconds timeout);

  bool is_used() const { return used_; }

  // As read_process_memory. Any thread.
  int read(int peer, std::uint64_t address, void* destination, std::size_t bytes) const;

  // After reads of `peer`: true where they gave what it had published. At most one system call.
  bool holds(int peer) const { return group_.stands(peer) && !group_.is_gone(peer); }

 private:
  std::optional<Refusal> try_word(int peer, const MemoryProbe& offer) const;

  const LocalGroup& group_;
  std::vector<ProcessIdentity> processes_;  // by rank
  bool used_ = false;
};

}  // namespace symm
