#include "symm_mem/segment.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/mesh_round.hpp"
#include "symm_mem/segment_offer.hpp"

namespace symm {
namespace {

std::atomic<std::uint64_t>& mapping_counter() {
  static std::atomic<std::uint64_t> made{0};
  return made;
}

std::shared_ptr<Mapping> counted(std::shared_ptr<Mapping> mapping) {
  mapping_counter().fetch_add(1, std::memory_order_relaxed);
  return mapping;
}

SegmentOffer offer_of(const LocalSegment& local, int world_size) {
  SegmentOffer offer;
  offer.device = static_cast<std::uint32_t>(local.runtime().kind());
  offer.bytes = local.bytes();
  offer.mapped_bytes = local.mapped_bytes();
  offer.multicast = MulticastStanding::of(local.runtime(), local.mapped_bytes(), world_size);
  return offer;
}

// What all ranks have sent in the first round, by rank.
struct Offers {
  std::vector<PeerMesh::Received> received;
  std::vector<SegmentOffer> offers;
  HandleKind kind = HandleKind::kDescriptor;
};

// First round: each rank sends its memory, or why it cannot. Throws the same on every rank when the
// segments do not fit together.
Offers exchange_offers(const MeshRound& round, const LocalSegment& local) {
  SegmentOffer own = offer_of(local, round.world_size());
  ExportedMemory exported;
  if (round.world_size() > 1) {
    own.error =
        try_step([&] { exported = export_by_every_kind(local.runtime(), *local.memory()); });
  }
  own.handles = exported.offer;
  Offers all;
  all.received = round.exchange(own.encode(), exported.descriptor.get());
  if (own.error) throw *own.error;
  for (int rank = 0; rank < round.world_size(); ++rank) {
    const auto& message = all.received[static_cast<std::size_t>(rank)].message;
    all.offers.push_back(rank == round.rank() ? own : SegmentOffer::decode(message, rank));
  }
  check_offers(all.offers);
  if (round.world_size() == 1) return all;
  std::vector<HandleOffer> handles;
  for (const SegmentOffer& offer : all.offers) handles.push_back(offer.handles);
  all.kind = choose_handle_kind(handles);
  return all;
}

// Second round, which every rank enters whatever came of the first: nobody has the segment unless
// all could map it. A rank's own error comes before the others'.
void agree(const MeshRound& round, const std::optional<Error>& own) {
  SegmentOffer verdict;
  verdict.error = own;
  std::vector<PeerMesh::Received> received;
  const std::optional<Error> late = try_step([&] { received = round.exchange(verdict.encode()); });
  if (own) throw *own;
  if (late) throw *late;
  for (int rank = 0; rank < round.world_size(); ++rank) {
    if (rank == round.rank()) continue;
    SegmentOffer::decode(received[static_cast<std::size_t>(rank)].message, rank)
        .throw_if_failed(rank);
  }
}

// The group's multicast object, over the memory that all ranks have by now.
Multicast agree_on_multicast(const MeshRound& round, const Offers& all, const LocalSegment& local) {
  std::vector<MulticastStanding> standings;
  for (const SegmentOffer& offer : all.offers) standings.push_back(offer.multicast);
  Multicast multicast =
      Multicast::agree(round, standings, local.runtime(), local.memory(), all.kind);
  if (multicast.available()) mapping_counter().fetch_add(1, std::memory_order_relaxed);
  return multicast;
}

struct ViewOwner {
  std::shared_ptr<AddressRange> range;
  std::vector<std::shared_ptr<Mapping>> mappings;
};

}  // namespace

std::uint64_t mappings_made() { return mapping_counter().load(std::memory_order_relaxed); }

LocalSegment::LocalSegment(DeviceRuntime& runtime, std::size_t bytes)
    : runtime_(runtime),
      bytes_(bytes),
      memory_(runtime.allocate(std::max<std::size_t>(bytes, 1))),
      mapping_(counted(runtime.map(memory_))) {}

std::shared_ptr<LocalSegment> LocalSegment::allocate(DeviceRuntime& runtime, std::size_t bytes) {
  return std::shared_ptr<LocalSegment>(new LocalSegment(runtime, bytes));
}

bool LocalSegment::contains(const void* pointer, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(base());
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address < start || address - start > bytes_) return false;
  return bytes <= bytes_ - (address - start);
}

Segment::Segment(std::shared_ptr<LocalSegment> local, int rank)
    : local_(std::move(local)), rank_(rank) {}

void Segment::map_peers(std::vector<PeerMesh::Received> received,
                        const std::vector<SegmentOffer>& offers, HandleKind kind) {
  DeviceRuntime& runtime = local_->runtime();
  for (std::size_t rank = 0; rank < bases_.size(); ++rank) {
    if (rank == static_cast<std::size_t>(rank_)) continue;
    memories_[rank] = runtime.import_memory(
        handle_of(kind, offers[rank].handles, std::move(received[rank].descriptor)),
        mapped_bytes());
    mappings_[rank] = counted(runtime.map(memories_[rank]));
    bases_[rank] = mappings_[rank]->base();
  }
}

std::shared_ptr<Segment> Segment::rendezvous(PeerMesh& mesh, std::shared_ptr<LocalSegment> local,
                                             std::uint64_t sequence,
                                             std::chrono::milliseconds timeout,
                                             const std::function<bool()>& give_up) {
  const auto own = static_cast<std::size_t>(mesh.rank());
  const auto world = static_cast<std::size_t>(mesh.world_size());
  std::shared_ptr<Segment> segment(new Segment(local, mesh.rank()));
  segment->memories_.resize(world);
  segment->mappings_.resize(world);
  segment->bases_.resize(world);
  segment->memories_[own] = local->memory();
  segment->bases_[own] = local->base();

  const MeshRound round{mesh, sequence, Deadline(timeout), give_up};
  Offers all;
  const std::optional<Error> error = try_step([&] {
    all = exchange_offers(round, *local);
    segment->map_peers(std::move(all.received), all.offers, all.kind);
  });
  agree(round, error);
  segment->multicast_ = agree_on_multicast(round, all, *local);
  return segment;
}

Segment::ContiguousView Segment::contiguous_view() {
  const std::lock_guard<std::mutex> lock(view_mutex_);
  if (view_.owner) return view_;
  const std::size_t stride = mapped_bytes();
  if (stride > std::numeric_limits<std::size_t>::max() / memories_.size()) {
    throw Error(ErrorCode::kSystem, "contiguous_view: " + std::to_string(memories_.size()) +
                                        " times " + std::to_string(stride) +
                                        " bytes exceed the address space");
  }
  DeviceRuntime& runtime = local_->runtime();
  auto owner = std::make_shared<ViewOwner>();
  owner->range = runtime.reserve(stride * memories_.size());
  for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
    owner->mappings.push_back(
        counted(runtime.map_at(memories_[rank], owner->range, rank * stride)));
  }
  view_ = {owner->range->base(), stride, owner};
  return view_;
}

}  // namespace symm
