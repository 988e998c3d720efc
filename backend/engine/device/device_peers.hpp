// The peers' device segments: described over the mesh, mapped when they are first needed.
//
// NOTE [Device handles]
// When a rank first uses its GPU it posts a SegmentDescriptor to every peer: its GPU, its segment's
// handles of every kind, or why it has none. A rank takes a peer's when it first needs the peer.
// Before the first collective every rank takes all of them, chooses with them the kind of handle
// (handle_choice.hpp), and then posts its status, "ok" or an error, and takes everybody's (a status
// exchange), so that either all ranks run collectives or all throw the same error. A peer that is
// needed before, by a message, is mapped by what the two ranks' descriptors allow. A descriptor
// also says to which GPUs the rank's links keep lines whole. Two ranks have lines where both say
// so, and a group where all pairs have them: whoever has the descriptors finds the same. Nothing
// here makes the group failed; waiting that ends without an answer throws, and that the caller must
// treat as a failure.
//
// Thread safety: none; the caller's mutex is held.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_segment.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/segment/segment_descriptor.hpp"

namespace symm {

class DevicePeers {
 public:
  // `own`: this rank's segment; a peer's must have as many bytes. References must outlive the
  // object.
  DevicePeers(LocalGroup& group, GpuRuntime& runtime, const DeviceSegment& own);

  // Posts this rank's segment to every peer. Local, once.
  void post();
  // Posts in its place why there is none, as a descriptor and as a status. Local, once.
  static void post_failure(LocalGroup& group, const std::string& device, const Error& error);

  // Peer's segment in this process; null before it was mapped.
  std::byte* base(int peer) const {
    const std::shared_ptr<Mapping>& mapping = peers_[static_cast<std::size_t>(peer)].mapping;
    return mapping ? mapping->base() : nullptr;
  }

  // Maps `peer`'s segment; waits for its descriptor. Throws why it cannot be used (again each
  // time), or that waiting has ended. `needs_lines` as of connect_all(). Local to the two ranks.
  void map(int peer, bool needs_lines, const Deadline& deadline, const std::string& call);
  // After map() or connect_all(): whether the two ranks have lines, the same on both.
  bool has_lines_to(int peer) const;
  // Why `peer`'s segment cannot be used, where that is known.
  const std::optional<Error>& problem(int peer) const {
    return peers_[static_cast<std::size_t>(peer)].problem;
  }

  // Maps every peer's, with a status exchange. Collective. Throws the ranks' common refusal
  // (again each time), or that waiting has ended. `needs_lines`: a pair of ranks without lines is a
  // refusal; the same on all ranks.
  void connect_all(bool needs_lines, const Deadline& deadline, const std::string& call);
  // After connect_all(), the same on all ranks: all pairs of them have lines.
  bool has_lines() const;
  // The same: how many ranks share the GPU that has most of them. Where it has fewer
  // multiprocessors than kMostBulkBlocksOfGpu, as many as would share one that has so many, each
  // having as much of it: two of a GPU of 64 count as four.
  int most_ranks_of_a_gpu() const;
  const std::optional<Error>& refusal() const { return refusal_; }

  // After connect_all(): lets go of the peers' memory; the addresses stay reserved. Local.
  void release() noexcept;
  // The peers' new memory at the same addresses. `own`: why this rank has none. Collective, a
  // rendezvous. Throws on every rank or on none, without a peer's memory then.
  void restore(std::optional<Error> own, const Deadline& deadline);

 private:
  struct Peer {
    std::optional<SegmentDescriptor> descriptor;  // once it was taken and is fine
    FileDescriptor file;                          // that came with it
    std::shared_ptr<Mapping> mapping;
    std::shared_ptr<AddressRange> range;  // of the mapping, once there was one
    std::optional<Error> problem;
  };

  BootstrapMesh::Received wait_for(int peer, std::uint64_t topic, const Deadline& deadline,
                                   const std::string& call);
  // Takes `peer`'s descriptor, if that has not been done. Throws as map().
  void take(int peer, const Deadline& deadline, const std::string& call);
  void check(int peer, const SegmentDescriptor& descriptor) const;
  // Throws where the two ranks, whose descriptors were taken, have none.
  void need_lines(int peer) const;
  // Needs the descriptor taken.
  void map_by(int peer, HandleKind kind);
  // The kind for all descriptors, which were taken.
  HandleKind choose_kind() const;
  // Maps what the peers have sent in a rendezvous.
  void map_again(std::vector<BootstrapMesh::Received> received);
  // Of a rank, once it was taken.
  const SegmentDescriptor& descriptor_of(int rank) const;
  bool have_lines(int one, int other) const;
  // Takes all descriptors and maps all peers; this rank's status.
  std::optional<Error> map_all(const Deadline& deadline, const std::string& call);
  std::string own_gpu() const;

  LocalGroup& group_;
  GpuRuntime& runtime_;
  const DeviceSegment& own_;
  SegmentDescriptor own_descriptor_;
  std::vector<Peer> peers_;  // by rank; that of this rank stays empty
  std::optional<Error> refusal_;
};

}  // namespace symm
