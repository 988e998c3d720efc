#include "symm_mem/segment/segment_exchange.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"

namespace symm {

SegmentOffer SegmentExchange::describe() const {
  SegmentOffer offer;
  offer.device = static_cast<std::uint32_t>(runtime_.kind());
  offer.bytes = local_.bytes();
  offer.mapped_bytes = local_.mapped_bytes();
  offer.adopted = local_.adopted();
  offer.start = local_.pieces().start;
  offer.pieces = static_cast<std::uint32_t>(local_.pieces().pieces.size());
  offer.multicast = MulticastStanding::of(runtime_, local_.mapped_bytes(), round_.world_size());
  if (offer.adopted && offer.multicast.problem.empty()) {
    offer.multicast.problem = "memory that symm has not allocated has no multicast pointer";
  }
  return offer;
}

// Puts the handles of this rank's `piece` into `offer`, or why there are none.
ExportedMemory SegmentExchange::export_piece(std::size_t piece, SegmentOffer& offer) const {
  ExportedMemory exported;
  const auto& pieces = local_.pieces().pieces;
  if (piece >= pieces.size()) return exported;
  offer.piece_bytes = pieces[piece]->bytes();
  if (round_.world_size() > 1) {
    offer.error = try_step([&] { exported = export_by_every_kind(runtime_, *pieces[piece]); });
  }
  offer.handles = exported.offer;
  return exported;
}

std::vector<SegmentOffer> SegmentExchange::decode(
    const SegmentOffer& own, const std::vector<PeerMesh::Received>& received) const {
  std::vector<SegmentOffer> offers;
  for (int rank = 0; rank < round_.world_size(); ++rank) {
    const auto& message = received[static_cast<std::size_t>(rank)].message;
    offers.push_back(rank == round_.rank() ? own : SegmentOffer::decode(message, rank));
  }
  return offers;
}

// A rank that has no such piece has no say: it counts as one to whom every kind is right.
HandleKind SegmentExchange::choose(std::size_t piece,
                                   const std::vector<SegmentOffer>& offers) const {
  std::vector<HandleOffer> handles;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const bool has_it = piece < opening_[rank].pieces;
    handles.push_back(has_it ? offers[rank].handles
                             : HandleOffer{.has_descriptor = true, .fabric = FabricHandle{}});
  }
  return choose_handle_kind(handles);
}

void SegmentExchange::receive(std::size_t piece, const std::vector<SegmentOffer>& offers,
                              std::vector<PeerMesh::Received> received) {
  const HandleKind kind = choose(piece, offers);
  if (piece == 0) kind_ = kind;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (rank == static_cast<std::size_t>(round_.rank()) || piece >= opening_[rank].pieces) continue;
    PiecedMemory& memory = memories_[rank];
    const std::uint64_t bytes = offers[rank].piece_bytes;
    if (bytes > opening_[rank].mapped_bytes - memory.bytes()) {
      throw Error(ErrorCode::kSecurity,
                  "rendezvous: rank " + std::to_string(rank) + " sent more memory than the " +
                      std::to_string(opening_[rank].mapped_bytes) + " bytes that it has offered");
    }
    memory.pieces.push_back(runtime_.import_memory(
        handle_of(kind, offers[rank].handles, std::move(received[rank].descriptor)), bytes));
  }
}

void SegmentExchange::check_complete() const {
  for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
    if (memories_[rank].bytes() == opening_[rank].mapped_bytes) continue;
    throw Error(ErrorCode::kSecurity, "rendezvous: rank " + std::to_string(rank) + " offered " +
                                          std::to_string(opening_[rank].mapped_bytes) +
                                          " bytes and sent " +
                                          std::to_string(memories_[rank].bytes()));
  }
}

// Throws the same on every rank where the segments do not fit together.
void SegmentExchange::open() {
  SegmentOffer own = describe();
  const ExportedMemory exported = export_piece(0, own);
  std::vector<PeerMesh::Received> received =
      round_.exchange(own.encode(), exported.descriptor.get());
  if (own.error) throw *own.error;
  opening_ = decode(own, received);
  check_offers(opening_);
  memories_.resize(opening_.size());
  for (std::size_t rank = 0; rank < opening_.size(); ++rank) {
    memories_[rank].start = opening_[rank].start;
  }
  memories_[static_cast<std::size_t>(round_.rank())] = local_.pieces();
  if (round_.world_size() > 1) receive(0, opening_, std::move(received));
}

// Returns what this rank has to tell in the next round, which is the last one then. Throws where
// this was the last.
std::optional<Error> SegmentExchange::carry(std::size_t piece) {
  SegmentOffer own;
  const ExportedMemory exported = export_piece(piece, own);
  std::vector<PeerMesh::Received> received;
  std::vector<SegmentOffer> offers;
  std::optional<Error> failed = try_step([&] {
    received = round_.exchange(own.encode(), exported.descriptor.get());
    offers = decode(own, received);
  });
  if (own.error) throw *own.error;
  if (failed) return failed;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    offers[rank].throw_if_failed(static_cast<int>(rank));
  }
  return try_step([&] { receive(piece, offers, std::move(received)); });
}

// The verdict, which every rank enters that has not left before.
void SegmentExchange::close(const std::optional<Error>& own) {
  SegmentOffer verdict;
  verdict.error = own;
  std::vector<PeerMesh::Received> received;
  const std::optional<Error> late = try_step([&] { received = round_.exchange(verdict.encode()); });
  if (own) throw *own;
  if (late) throw *late;
  for (int rank = 0; rank < round_.world_size(); ++rank) {
    if (rank == round_.rank()) continue;
    SegmentOffer::decode(received[static_cast<std::size_t>(rank)].message, rank)
        .throw_if_failed(rank);
  }
}

std::vector<PiecedMemory> SegmentExchange::run(
    const std::function<void(const std::vector<PiecedMemory>&)>& map) {
  std::optional<Error> own = try_step([&] { open(); });
  std::size_t pieces = 1;
  for (const SegmentOffer& offer : opening_) pieces = std::max<std::size_t>(pieces, offer.pieces);
  for (std::size_t piece = 1; !own && piece < pieces && round_.world_size() > 1; ++piece) {
    own = carry(piece);
  }
  if (!own) {
    own = try_step([&] {
      check_complete();
      map(memories_);
    });
  }
  close(own);
  return std::move(memories_);
}

std::vector<MulticastStanding> SegmentExchange::standings() const {
  std::vector<MulticastStanding> all;
  for (const SegmentOffer& offer : opening_) all.push_back(offer.multicast);
  return all;
}

}  // namespace symm
