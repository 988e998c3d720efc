// The peers' device segments: exchanged over the mesh, mapped when they are first needed.
//
// NOTE [Offers and verdicts]
// When a rank makes its engine it posts an offer to every peer: its GPU, its segment's handles of
// every kind, or why it has none. A rank takes a peer's offer when it first needs the peer. Before
// the first collective every rank takes all offers, chooses with them the kind of handle
// (handle_choice.hpp) and then posts a verdict, "ok" or an error text, and takes everybody's, so
// that either all ranks run collectives or all throw the same error. A peer that is needed before,
// by a message, is mapped by what the two ranks' offers allow. Nothing here makes the group failed;
// waiting that ends without an answer throws, and that the caller must treat as a failure.
//
// Thread safety: none; the caller's mutex is held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_engine.hpp"
#include "backend/engine/group/group_health.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/segment/handle_choice.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

class DevicePeers {
 public:
  // `layout_bytes`: what a rank's segment must hold. References must outlive the object.
  DevicePeers(PeerMesh& mesh, GroupHealth& health, GpuRuntime& runtime, DeviceId device,
              std::uint64_t layout_bytes);

  // Posts this rank's segment to every peer. Local, once.
  void offer(const LocalSegment& own);
  // Posts in its place why there is none, as an offer and as a verdict. Local, once.
  static void offer_failure(PeerMesh& mesh, DeviceId device, const Error& error);

  // Peer's segment in this process; null before it was mapped.
  std::byte* base(int peer) const { return peers_[static_cast<std::size_t>(peer)].base; }

  // Maps `peer`'s segment; waits for its offer. Throws why it cannot be used (again each time), or
  // that waiting has ended. Local to the two ranks.
  std::byte* map(int peer, const Deadline& deadline, const std::string& call);
  // Why `peer`'s segment cannot be used, where that is known.
  const std::optional<Error>& problem(int peer) const {
    return peers_[static_cast<std::size_t>(peer)].problem;
  }

  // Maps every peer's and agrees with all ranks. Collective. Throws the ranks' common refusal
  // (again each time), or that waiting has ended.
  void agree(const Deadline& deadline, const std::string& call);
  bool agreed() const { return agreed_; }
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  struct Offer;
  struct Peer {
    std::shared_ptr<Offer> offer;  // once it was taken and is fine
    FileDescriptor descriptor;     // that came with it
    std::shared_ptr<PhysicalMemory> memory;
    std::shared_ptr<Mapping> mapping;
    std::byte* base = nullptr;
    std::optional<Error> problem;
  };

  PeerMesh::Received wait_for(int peer, std::uint64_t topic, const Deadline& deadline,
                              const std::string& call);
  // Takes `peer`'s offer, if that has not been done. Throws as map().
  void take_offer(int peer, const Deadline& deadline, const std::string& call);
  void check(int peer, const Offer& offer) const;
  // Both need the offers taken.
  HandleKind kind_for_pair(int peer) const;
  HandleKind kind_for_group() const;
  std::byte* map_offered(int peer, HandleKind kind);
  // Takes all offers and maps all peers; this rank's part of the verdict.
  std::optional<Error> map_all(const Deadline& deadline, const std::string& call);
  std::string own_gpu() const;

  PeerMesh& mesh_;
  GroupHealth& health_;
  GpuRuntime& runtime_;
  const DeviceId device_;
  const std::uint64_t layout_bytes_;
  HandleOffer own_handles_;
  std::vector<Peer> peers_;  // by rank; that of this rank stays empty
  bool agreed_ = false;
  std::optional<Error> refusal_;
};

}  // namespace symm
