// Symmetric memory: one physical allocation a rank, and every peer's mapped here.
//
// NOTE [Segments]
// A LocalSegment is this rank's allocation, made without any peer. rendezvous() is collective and
// turns one LocalSegment a rank into a Segment of a group. One LocalSegment may join several
// groups. A Segment keeps the local allocation and all mappings alive; a peer's memory outlives the
// peer for as long as it is mapped here. A rendezvous also chooses the kind of handle by which
// memory travels (handle_choice.hpp) and makes a multicast object (multicast_team.hpp).
//
// NOTE [User buffers]
// A LocalSegment may also describe memory that another library has made: chunks side by side in
// that library's addresses, the buffer somewhere in them (ChunkedMemory). The ranks' chunks may be
// cut differently, and their buffers may begin at different places of the first chunk; every rank
// maps a peer's chunks side by side into one range, and base(peer) is where the peer's buffer
// begins. One round of the rendezvous carries one chunk of each rank. The segment keeps the
// physical memory alive, not the addresses: its owner may put other memory there. Whoever registers
// it says how to ask whether that has happened; contains() is false from then on, so that no
// address is taken for memory that the peers do not see there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/segment/multicast_team.hpp"

namespace symm {

// Mappings that segments of this process have made so far: of local memory, of peers', and those of
// contiguous views and multicast objects. It only grows. Local, thread safe.
std::uint64_t mappings_made();

class LocalSegment {
 public:
  // Local. bytes == 0 is legal and occupies one granule. The memory is of `runtime`'s device, which
  // the segment refers to for as long as it lives.
  static std::shared_ptr<LocalSegment> allocate(DeviceRuntime& runtime, std::size_t bytes);

  // Local. Of [base, base + bytes), which `memory` of `runtime` backs; nothing is mapped.
  // `still_there` returns whether those addresses still show that memory; it is called by
  // contains(), from any thread, must not throw, and must be quick.
  static std::shared_ptr<LocalSegment> from_user_buffer(DeviceRuntime& runtime, std::byte* base,
                                                        std::size_t bytes, ChunkedMemory memory,
                                                        std::function<bool()> still_there);

  DeviceRuntime& runtime() const { return runtime_; }
  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }                  // as asked for
  std::size_t mapped_bytes() const { return memory_.bytes(); }  // of all chunks
  bool is_user_buffer() const { return mapping_ == nullptr; }
  const ChunkedMemory& chunks() const { return memory_; }
  // Of a segment that is no user buffer: all of it.
  const std::shared_ptr<PhysicalMemory>& memory() const { return memory_.chunks.front(); }
  bool contains(const void* pointer, std::size_t bytes) const;

 private:
  LocalSegment(DeviceRuntime& runtime, std::size_t bytes, ChunkedMemory memory);

  DeviceRuntime& runtime_;
  std::size_t bytes_;
  ChunkedMemory memory_;
  std::shared_ptr<Mapping> mapping_;  // null where a user buffer
  std::byte* base_ = nullptr;
  std::function<bool()> still_there_;  // empty where no user buffer
};

class Segment {
 public:
  // Collective over the mesh. Every rank must bring a segment of the same mapped size (with
  // user buffers: of the same bytes), else all ranks throw Error(kMismatch) that names both
  // sizes; kUnsupported where no kind of handle serves all ranks. `position` as in
  // BootstrapMesh::exchange. After kTimeout and kPeerLost some ranks may have the segment.
  static std::shared_ptr<Segment> rendezvous(BootstrapMesh& mesh,
                                             std::shared_ptr<LocalSegment> local,
                                             FramePosition position,
                                             std::chrono::milliseconds timeout,
                                             const std::function<bool()>& give_up);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(bases_.size()); }
  std::size_t bytes() const { return local_->bytes(); }
  std::size_t mapped_bytes() const { return local_->mapped_bytes(); }
  // Of the exchange that made it: the same on every rank that has the segment, and no other
  // segment's of the group.
  std::uint64_t number() const { return number_; }
  // Where GPUs find it, in their tables (NOTE [Rows of segments] in table_rows.hpp): the same on
  // every rank that has the segment. None for memory of the CPU, and where no row was free on all.
  std::optional<int> row() const { return row_; }
  // Of all ranks: whether it is memory of the CPU.
  bool is_on_host() const { return local_->runtime().kind() == DeviceKind::kHost; }

  // Start of `rank`'s buffer in this process's address space; base(rank()) is the local one.
  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::byte* const* bases() const { return bases_.data(); }
  const std::shared_ptr<LocalSegment>& local() const { return local_; }

  // The ranks' buffers in one range of addresses: offset o of rank r's buffer is at
  // base + r * stride_bytes + o, for the writer's own buffer too. Local (needs no peer), made on
  // the first call and cached, thread safe. The memory and the range live as long as `owner` does,
  // whatever becomes of the segment. Not under graph capture where it is the first call. Throws
  // Error(kSystem); kUnsupported, on every rank, where user buffers begin at places that are
  // not apart by whole granules, since no mapping can then bring them to one stride.
  struct ContiguousView {
    std::byte* base = nullptr;
    // A multiple of the device's granularity; mapped_bytes() unless it is a user buffer.
    std::size_t stride_bytes = 0;
    std::shared_ptr<void> owner;
  };
  ContiguousView contiguous_view();

  // For memory that is shared for good: lets go of the descriptors of all ranks' memory, this
  // rank's too, so that it can join no other segment and has no contiguous view.
  void close_handles() noexcept;

  // The group's multicast object over the ranks' buffers, made at the rendezvous; its base() throws
  // why there is none. Lives as long as the segment.
  const Multicast& multicast() const { return multicast_; }

 private:
  friend class SegmentRendezvous;
  // Maps the peers' memory. Local.
  Segment(std::shared_ptr<LocalSegment> local, int rank, std::vector<ChunkedMemory> memories,
          RankNames names, std::uint64_t number, std::optional<int> row);
  void set_multicast(Multicast multicast);

  std::shared_ptr<LocalSegment> local_;
  int rank_;
  const RankNames names_;
  const std::uint64_t number_;
  const std::optional<int> row_;
  std::vector<ChunkedMemory> memories_;             // by rank
  std::vector<std::shared_ptr<Mapping>> mappings_;  // of the peers' chunks
  std::vector<std::byte*> bases_;                   // by rank
  Multicast multicast_{"the rendezvous has not ended"};
  std::mutex view_mutex_;
  ContiguousView view_;
};

}  // namespace symm
