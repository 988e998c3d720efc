// The rendezvous of a segment: turns one LocalSegment a rank into a Segment of the group.
//
// NOTE [Rounds of a rendezvous]
// Every rank posts its handle descriptor: its memory's size and the handles of the first physical
// chunk. No rank waits for that, so the posts travel beside the caller's metadata exchange:
// together they are round 1. Then each rank takes the others' posts and maps their memory. The last
// round is the status exchange. Memory of several chunks needs one more round for each further
// chunk, before the status exchange. Every message can carry an error, and the first round after
// the posts in which a rank sends one is the last: a rank that fails between two rounds sends its
// error in the next, so all ranks leave in the same round and none has the memory.
//
// A rank whose time-out passes in the status exchange, or behind it, cannot call back the status
// that it has sent: its peers may have the segment, and it has not. Nothing that ranks say to each
// other of segments may therefore depend on how many a rank has: a segment's number is that of the
// exchange, and its row was offered by all (NOTE [Rows of segments] in table_rows.hpp).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/segment/segment.hpp"
#include "symm_mem/segment/segment_descriptor.hpp"

namespace symm {

class SegmentRendezvous {
 public:
  // Refers to `round`. `free_rows`: of this rank's SegmentTable; none for a segment that is never
  // in one.
  SegmentRendezvous(const MeshRound& round, std::shared_ptr<LocalSegment> local,
                    const TableRows& free_rows = {});

  // Local, once. run() does it where it has not been done. Throws Error(kSystem).
  void post();

  // Collective, once. `prepare` is called with the segment when the others' memory is mapped,
  // before the status exchange, so that its failure is everybody's. Throws Error: this rank's own
  // before another's, whose message names that rank. kMismatch where the ranks' memory does not fit
  // together, kUnsupported where no kind of handle serves all.
  std::shared_ptr<Segment> run(const std::function<void(const Segment& made)>& prepare = {});

 private:
  const RankNames& names() const { return round_.mesh.names(); }
  SegmentDescriptor describe() const;
  void open();
  std::optional<Error> carry(std::size_t chunk);
  void receive(std::size_t chunk, const std::vector<SegmentDescriptor>& descriptors,
               std::vector<BootstrapMesh::Received> received);
  HandleKind choose(std::size_t chunk, const std::vector<SegmentDescriptor>& descriptors) const;
  void check_complete() const;
  std::optional<int> choose_row() const;
  void exchange_status(const std::optional<Error>& own);
  std::vector<SegmentDescriptor> decode(const SegmentDescriptor& own,
                                        const std::vector<BootstrapMesh::Received>& received) const;
  ExportedMemory export_chunk(std::size_t chunk, SegmentDescriptor& descriptor) const;
  Multicast agree_on_multicast() const;

  const MeshRound& round_;
  const std::shared_ptr<LocalSegment> local_;
  DeviceRuntime& runtime_;
  const TableRows free_rows_;
  std::optional<SegmentDescriptor> own_;        // once it was posted
  std::vector<SegmentDescriptor> descriptors_;  // by rank
  std::vector<ChunkedMemory> memories_;         // by rank, this rank's own among them
  HandleKind kind_ = HandleKind::kDescriptor;   // of the first chunks
};

}  // namespace symm
