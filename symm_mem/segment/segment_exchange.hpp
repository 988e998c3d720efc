// How the ranks of a rendezvous hand each other their memory.
//
// NOTE [Rounds of a rendezvous]
// In the first round every rank tells what it brings and sends its first piece; each further round
// carries the next piece of every rank that has one. The last round is the verdict: whether all
// went well. Every message can carry an error, and the first round after the opening one in which
// any rank tells one is the last: a rank that fails between two rounds says so in the next,
// whichever it is, so all leave together and nobody has the memory.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/segment/segment.hpp"
#include "symm_mem/segment/segment_offer.hpp"

namespace symm {

class SegmentExchange {
 public:
  // Refers to `round` and `local`.
  SegmentExchange(const MeshRound& round, const LocalSegment& local)
      : round_(round), local_(local), runtime_(local.runtime()) {}

  // Collective, once. Everybody's memory by rank, this rank's own among it. `map` makes use of it
  // before the verdict, so that its failure is everybody's. Throws Error: this rank's own before
  // another's, whose message names that rank.
  std::vector<PiecedMemory> run(const std::function<void(const std::vector<PiecedMemory>&)>& map);

  // After run(): what each rank said of multicast, and the kind of handle of the first pieces.
  std::vector<MulticastStanding> standings() const;
  HandleKind kind() const { return kind_; }

 private:
  SegmentOffer describe() const;
  void open();
  std::optional<Error> carry(std::size_t piece);
  void receive(std::size_t piece, const std::vector<SegmentOffer>& offers,
               std::vector<PeerMesh::Received> received);
  HandleKind choose(std::size_t piece, const std::vector<SegmentOffer>& offers) const;
  void check_complete() const;
  void close(const std::optional<Error>& own);
  std::vector<SegmentOffer> decode(const SegmentOffer& own,
                                   const std::vector<PeerMesh::Received>& received) const;
  ExportedMemory export_piece(std::size_t piece, SegmentOffer& offer) const;

  const MeshRound& round_;
  const LocalSegment& local_;
  DeviceRuntime& runtime_;
  std::vector<SegmentOffer> opening_;   // by rank
  std::vector<PiecedMemory> memories_;  // by rank
  HandleKind kind_ = HandleKind::kDescriptor;
};

}  // namespace symm
