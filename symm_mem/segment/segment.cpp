#include "symm_mem/segment/segment.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"

namespace symm {
namespace {

std::atomic<std::uint64_t> mapping_count{0};

std::shared_ptr<Mapping> counted(std::shared_ptr<Mapping> mapping) {
  mapping_count.fetch_add(1, std::memory_order_relaxed);
  return mapping;
}

struct ViewOwner {
  std::shared_ptr<AddressRange> range;
  std::vector<std::shared_ptr<Mapping>> mappings;
};

// All chunks of `memory` from `offset` of `range` on.
void map_side_by_side(DeviceRuntime& runtime, const ChunkedMemory& memory,
                      const std::shared_ptr<AddressRange>& range, std::size_t offset,
                      std::vector<std::shared_ptr<Mapping>>& mappings) {
  for (const std::shared_ptr<PhysicalMemory>& chunk : memory.chunks) {
    mappings.push_back(counted(runtime.map_at(chunk, range, offset)));
    offset += chunk->bytes();
  }
}

// Every rank's buffer begins `start` bytes into its slice of `stride` bytes.
struct ViewLayout {
  std::size_t start = 0;
  std::size_t stride = 0;
};

// All ranks know all sizes, so all throw or none.
ViewLayout view_layout(const std::vector<ChunkedMemory>& memories, std::size_t granularity,
                       const RankNames& names) {
  ViewLayout layout;
  for (const ChunkedMemory& memory : memories) layout.start = std::max(layout.start, memory.start);
  for (std::size_t rank = 0; rank < memories.size(); ++rank) {
    const std::size_t lead = layout.start - memories[rank].start;
    if (lead % granularity != 0) {
      throw Error(
          ErrorCode::kUnsupported,
          "contiguous_view: the buffers begin at different places of what can be mapped: byte ",
          memories[rank].start, " of the first chunk on ", names.name(static_cast<int>(rank)),
          ", byte ", layout.start, " on another, which is no multiple of ", granularity,
          " apart; copy the tensor into one of torch_symm.empty on every rank");
    }
    layout.stride = std::max(layout.stride, lead + memories[rank].bytes());
  }
  return layout;
}

}  // namespace

std::uint64_t mappings_made() { return mapping_count.load(std::memory_order_relaxed); }

LocalSegment::LocalSegment(DeviceRuntime& runtime, std::size_t bytes, ChunkedMemory memory)
    : runtime_(runtime), bytes_(bytes), memory_(std::move(memory)) {}

std::shared_ptr<LocalSegment> LocalSegment::allocate(DeviceRuntime& runtime, std::size_t bytes) {
  ChunkedMemory memory;
  memory.chunks.push_back(runtime.allocate(std::max<std::size_t>(bytes, 1)));
  std::shared_ptr<LocalSegment> segment(new LocalSegment(runtime, bytes, std::move(memory)));
  segment->mapping_ = counted(runtime.map(segment->memory()));
  segment->base_ = segment->mapping_->base();
  return segment;
}

std::shared_ptr<LocalSegment> LocalSegment::from_user_buffer(DeviceRuntime& runtime,
                                                             std::byte* base, std::size_t bytes,
                                                             ChunkedMemory memory,
                                                             std::function<bool()> still_there) {
  const std::size_t mapped = memory.bytes();
  if (memory.chunks.empty() || memory.start > mapped || bytes > mapped - memory.start) {
    throw Error(ErrorCode::kInvalidArgument, "from_user_buffer: expected chunks of at least ",
                memory.start, " and ", bytes, " bytes, got ", mapped);
  }
  std::shared_ptr<LocalSegment> segment(new LocalSegment(runtime, bytes, std::move(memory)));
  segment->base_ = base;
  segment->still_there_ = std::move(still_there);
  return segment;
}

bool LocalSegment::contains(const void* pointer, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(base());
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address < start || address - start > bytes_) return false;
  return bytes <= bytes_ - (address - start) && (!still_there_ || still_there_());
}

Segment::Segment(std::shared_ptr<LocalSegment> local, int rank, std::vector<ChunkedMemory> memories,
                 RankNames names, std::uint64_t number, std::optional<int> row)
    : local_(std::move(local)),
      rank_(rank),
      names_(std::move(names)),
      number_(number),
      row_(row),
      memories_(std::move(memories)),
      bases_(memories_.size(), local_->base()) {
  DeviceRuntime& runtime = local_->runtime();
  for (std::size_t peer = 0; peer < bases_.size(); ++peer) {
    if (peer == static_cast<std::size_t>(rank)) continue;
    const ChunkedMemory& memory = memories_[peer];
    if (memory.chunks.size() == 1) {
      mappings_.push_back(counted(runtime.map(memory.chunks.front())));
      bases_[peer] = mappings_.back()->base() + memory.start;
      continue;
    }
    const std::shared_ptr<AddressRange> range = runtime.reserve(memory.bytes());
    map_side_by_side(runtime, memory, range, 0, mappings_);
    bases_[peer] = range->base() + memory.start;
  }
}

void Segment::set_multicast(Multicast multicast) {
  multicast_ = std::move(multicast);
  if (multicast_.available()) mapping_count.fetch_add(1, std::memory_order_relaxed);
}

void Segment::close_handles() noexcept {
  for (const ChunkedMemory& memory : memories_) {
    for (const std::shared_ptr<PhysicalMemory>& chunk : memory.chunks) chunk->close_handle();
  }
}

std::shared_ptr<Segment> Segment::rendezvous(BootstrapMesh& mesh,
                                             std::shared_ptr<LocalSegment> local,
                                             FramePosition position,
                                             std::chrono::milliseconds timeout,
                                             const std::function<bool()>& give_up) {
  const MeshRound round{mesh, position, Deadline(timeout), give_up};
  return SegmentRendezvous(round, std::move(local)).run();
}

Segment::ContiguousView Segment::contiguous_view() {
  const std::lock_guard<std::mutex> lock(view_mutex_);
  if (view_.owner) return view_;
  DeviceRuntime& runtime = local_->runtime();
  const ViewLayout layout = view_layout(memories_, runtime.granularity(), names_);
  if (layout.stride > std::numeric_limits<std::size_t>::max() / memories_.size()) {
    throw Error(ErrorCode::kSystem, "contiguous_view: ", memories_.size(), " times ", layout.stride,
                " bytes exceed the address space");
  }
  auto owner = std::make_shared<ViewOwner>();
  owner->range = runtime.reserve(layout.stride * memories_.size());
  for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
    const std::size_t lead = layout.start - memories_[rank].start;
    map_side_by_side(runtime, memories_[rank], owner->range, rank * layout.stride + lead,
                     owner->mappings);
  }
  view_ = {owner->range->base() + layout.start, layout.stride, owner};
  return view_;
}

}  // namespace symm
