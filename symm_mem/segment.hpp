// Symmetric memory: one physical allocation a rank, and every peer's mapped here.
//
// NOTE [Segments]
// A LocalSegment is this rank's allocation, made without any peer. rendezvous() is collective and
// turns one LocalSegment a rank into a Segment of a group. One LocalSegment may join several
// groups. A Segment keeps the local allocation and all mappings alive; a peer's memory outlives the
// peer for as long as it is mapped here. A rendezvous also agrees on the kind of handle by which
// memory travels (handle_choice.hpp) and on a multicast object (multicast_team.hpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/multicast_team.hpp"
#include "symm_mem/peer_mesh.hpp"

namespace symm {

// Mappings that segments of this process have made so far: of local memory, of peers', and those of
// contiguous views and multicast objects. It only grows. Local, thread safe.
std::uint64_t mappings_made();

class LocalSegment {
 public:
  // Local. bytes == 0 is legal and occupies one granule. The memory is of `runtime`'s device, which
  // the segment refers to for as long as it lives.
  static std::shared_ptr<LocalSegment> allocate(DeviceRuntime& runtime, std::size_t bytes);

  DeviceRuntime& runtime() const { return runtime_; }
  std::byte* base() const { return mapping_->base(); }
  std::size_t bytes() const { return bytes_; }                    // as asked for
  std::size_t mapped_bytes() const { return mapping_->bytes(); }  // rounded up
  const std::shared_ptr<PhysicalMemory>& memory() const { return memory_; }
  bool contains(const void* pointer, std::size_t bytes) const;

 private:
  LocalSegment(DeviceRuntime& runtime, std::size_t bytes);

  DeviceRuntime& runtime_;
  std::size_t bytes_;
  std::shared_ptr<PhysicalMemory> memory_;
  std::shared_ptr<Mapping> mapping_;
};

struct SegmentOffer;

class Segment {
 public:
  // Collective over the mesh. Every rank must bring a segment of the same mapped size, else all
  // ranks throw Error(kMismatch) that names both sizes; kUnsupported where no kind of handle serves
  // all ranks. `sequence` as in PeerMesh::exchange. No segment is had by some ranks only.
  static std::shared_ptr<Segment> rendezvous(PeerMesh& mesh, std::shared_ptr<LocalSegment> local,
                                             std::uint64_t sequence,
                                             std::chrono::milliseconds timeout,
                                             const std::function<bool()>& give_up);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(bases_.size()); }
  std::size_t bytes() const { return local_->bytes(); }
  std::size_t mapped_bytes() const { return local_->mapped_bytes(); }

  // Start of `rank`'s buffer in this process's address space; base(rank()) is the local one.
  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::byte* const* bases() const { return bases_.data(); }
  const std::shared_ptr<LocalSegment>& local() const { return local_; }

  // The ranks' buffers in one range of addresses: what stands at offset o of rank r's buffer stands
  // at base + r * stride_bytes + o, for the writer's own buffer too. Local (needs no peer), made on
  // the first call and cached, thread safe. The memory and the range live as long as `owner` does,
  // whatever becomes of the segment. Not under graph capture where it is the first call. Throws
  // Error(kSystem).
  struct ContiguousView {
    std::byte* base = nullptr;
    std::size_t stride_bytes = 0;  // mapped_bytes(), a multiple of the device's granularity
    std::shared_ptr<void> owner;
  };
  ContiguousView contiguous_view();

  // The group's multicast object over the ranks' buffers, agreed on at the rendezvous; its base()
  // throws why there is none. Lives as long as the segment.
  const Multicast& multicast() const { return multicast_; }

 private:
  Segment(std::shared_ptr<LocalSegment> local, int rank);
  void map_peers(std::vector<PeerMesh::Received> received, const std::vector<SegmentOffer>& offers,
                 HandleKind kind);

  std::shared_ptr<LocalSegment> local_;
  int rank_;
  std::vector<std::shared_ptr<PhysicalMemory>> memories_;  // by rank
  std::vector<std::shared_ptr<Mapping>> mappings_;         // by rank; empty for this one
  std::vector<std::byte*> bases_;                          // by rank
  Multicast multicast_{"the rendezvous has not ended"};
  std::mutex view_mutex_;
  ContiguousView view_;
};

}  // namespace symm
