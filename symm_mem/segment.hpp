// Symmetric memory: one physical allocation a rank, and every peer's mapped here.
//
// NOTE [Segments]
// A LocalSegment is this rank's allocation, made without any peer. rendezvous() is collective and
// turns one LocalSegment a rank into a Segment of a group. One LocalSegment may join several
// groups. A Segment keeps the local allocation and all mappings alive; a peer's memory outlives the
// peer for as long as it is mapped here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/peer_mesh.hpp"

namespace symm {

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

class Segment {
 public:
  // Collective over the mesh. Every rank must bring a segment of the same mapped size, else all
  // ranks throw Error(kMismatch) that names both sizes. `sequence` as in PeerMesh::exchange.
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

  // The ranks' buffers in one range: rank r's stands at r * mapped_bytes(). Local (needs no peer),
  // made on the first call and cached; the returned mapping set keeps the memory alive.
  struct ContiguousView {
    std::byte* base = nullptr;
    std::size_t stride_bytes = 0;  // mapped_bytes()
    std::shared_ptr<void> owner;
  };
  ContiguousView contiguous_view();

 private:
  Segment(std::shared_ptr<LocalSegment> local, int rank);

  std::shared_ptr<LocalSegment> local_;
  int rank_;
  std::vector<std::shared_ptr<PhysicalMemory>> memories_;  // by rank
  std::vector<std::shared_ptr<Mapping>> mappings_;         // by rank; empty for this one
  std::vector<std::byte*> bases_;                          // by rank
  std::mutex view_mutex_;
  ContiguousView view_;
};

}  // namespace symm
