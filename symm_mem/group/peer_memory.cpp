#include "symm_mem/group/peer_memory.hpp"

#include <algorithm>
#include <cerrno>

namespace symm {

std::optional<PeerMemory::Refusal> PeerMemory::try_word(int peer, const MemoryProbe& offer) const {
  const ProcessIdentity& mine = processes_[static_cast<std::size_t>(group_.rank())];
  const ProcessIdentity& theirs = processes_[static_cast<std::size_t>(peer)];
  // Numbers of another namespace mean other processes here.
  if (theirs.pid_namespace != mine.pid_namespace || theirs.pid_namespace == 0) {
    return Refusal{group_.rank(), peer, ESRCH};
  }
  std::uint64_t word = 0;
  const int error = read_process_memory(theirs.pid, offer.address, &word, sizeof(word));
  if (error != 0) return Refusal{group_.rank(), peer, error};
  if (word != offer.word) return Refusal{group_.rank(), peer, 0};
  return std::nullopt;
}

std::optional<PeerMemory::Refusal> PeerMemory::probe(LocalGroup& group,
                                                     std::span<const MemoryProbe> offers,
                                                     std::chrono::milliseconds timeout) {
  enum Word : std::size_t { kRefused, kOwner, kError, kWords };
  for (int rank = 0; rank < group.world_size(); ++rank) {
    processes_.push_back(group.mesh().peer(rank).process);
  }
  std::optional<Refusal> refusal;
  for (int peer = 0; peer < group.world_size() && !refusal; ++peer) {
    refusal = try_word(peer, offers[static_cast<std::size_t>(peer)]);
  }
  std::vector<std::uint64_t> words(kWords);
  if (refusal) {
    words[kRefused] = 1;
    words[kOwner] = static_cast<std::uint64_t>(refusal->owner);
    words[kError] = static_cast<std::uint64_t>(refusal->error);
  }
  const auto results =
      group.exchange_words(LocalGroup::Purpose::kMessage, words, kWords, Deadline(timeout))
          .messages;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const std::vector<std::uint64_t>& theirs = results[static_cast<std::size_t>(rank)];
    if (theirs[kRefused] != 0) {
      // Of what a rank says, the number alone could be one that this group does not have.
      const auto owner = std::min(theirs[kOwner], results.size() - 1);
      return Refusal{rank, static_cast<int>(owner), static_cast<int>(theirs[kError])};
    }
  }
  used_ = true;
  return std::nullopt;
}

int PeerMemory::read(int peer, std::uint64_t address, void* destination, std::size_t bytes) const {
  return read_process_memory(processes_[static_cast<std::size_t>(peer)].pid, address, destination,
                             bytes);
}

}  // namespace symm
