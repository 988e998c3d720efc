#include "symm_mem/segment.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/byte_codec.hpp"
#include "symm_mem/deadline.hpp"

namespace symm {
namespace {

// What each rank says of the segment that it brings, and later of whether it could map the others'.
// Little-endian: magic u32, device kind u32, bytes u64, mapped bytes u64, error code u32 (kNoError
// for none), error text (u32 length and bytes).
constexpr std::uint32_t kOfferMagic = 0x6d676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxErrorText = 1024;

struct Offer {
  std::uint32_t device = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;
  std::optional<Error> error;
};

std::vector<std::uint8_t> encode_offer(const Offer& offer) {
  ByteWriter writer;
  writer.integer(kOfferMagic);
  writer.integer(offer.device);
  writer.integer(offer.bytes);
  writer.integer(offer.mapped_bytes);
  writer.integer(offer.error ? static_cast<std::uint32_t>(offer.error->code()) : kNoError);
  const std::string text = offer.error ? offer.error->what() : "";
  writer.sized(std::string_view(text).substr(0, kMaxErrorText));
  return writer.take();
}

Offer parse_offer(std::span<const std::uint8_t> bytes, int rank) {
  ByteReader reader(bytes);
  const auto magic = reader.integer<std::uint32_t>();
  Offer offer;
  offer.device = reader.integer<std::uint32_t>();
  offer.bytes = reader.integer<std::uint64_t>();
  offer.mapped_bytes = reader.integer<std::uint64_t>();
  const auto code = reader.integer<std::uint32_t>();
  const std::string text = reader.text(kMaxErrorText);
  if (!reader.finished() || magic != kOfferMagic) {
    throw Error(ErrorCode::kSecurity,
                "rendezvous: rank " + std::to_string(rank) + " sent a malformed offer");
  }
  if (code != kNoError) {
    const auto last = static_cast<std::uint32_t>(ErrorCode::kSecurity);
    offer.error.emplace(static_cast<ErrorCode>(std::min(code, last)), text);
  }
  return offer;
}

void throw_if_failed(const Offer& offer, int rank) {
  if (!offer.error) return;
  throw Error(offer.error->code(),
              "rendezvous: rank " + std::to_string(rank) + " failed: " + offer.error->what());
}

// All ranks see the same offers, so all find the same mismatch.
void check_offers(const std::vector<Offer>& offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    throw_if_failed(offers[rank], static_cast<int>(rank));
  }
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    const Offer& first = offers[0];
    const Offer& other = offers[rank];
    if (other.device != first.device) {
      throw Error(ErrorCode::kMismatch, "rendezvous: rank 0 and rank " + std::to_string(rank) +
                                            " brought memory of different devices");
    }
    if (other.mapped_bytes != first.mapped_bytes) {
      throw Error(ErrorCode::kMismatch,
                  "rendezvous: every rank must bring a segment of the same size; rank 0 brought " +
                      std::to_string(first.bytes) + " bytes (" +
                      std::to_string(first.mapped_bytes) + " mapped), rank " +
                      std::to_string(rank) + " brought " + std::to_string(other.bytes) +
                      " bytes (" + std::to_string(other.mapped_bytes) + " mapped)");
    }
  }
}

// Runs `step`; its error is remembered instead of thrown, so that the other ranks can be told.
template <typename Step>
std::optional<Error> try_step(Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

struct RoundContext {
  PeerMesh& mesh;
  std::uint64_t sequence;
  Deadline deadline;
  const std::function<bool()>& give_up;

  std::vector<PeerMesh::Received> exchange(const Offer& offer, int descriptor) const {
    return mesh.exchange(sequence, encode_offer(offer), descriptor, deadline.remaining(), give_up);
  }
};

// First round: each rank sends its memory, or why it cannot. Throws the same on every rank when the
// segments do not fit together.
std::vector<PeerMesh::Received> exchange_offers(const RoundContext& round, LocalSegment& local,
                                                Offer offer) {
  const auto own = static_cast<std::size_t>(round.mesh.rank());
  FileDescriptor exported;
  if (round.mesh.world_size() > 1) {
    offer.error = try_step([&] { exported = local.runtime().export_memory(*local.memory()); });
  }
  std::vector<PeerMesh::Received> received = round.exchange(offer, exported.get());
  if (offer.error) throw *offer.error;
  std::vector<Offer> offers(received.size());
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    offers[rank] =
        rank == own ? offer : parse_offer(received[rank].message, static_cast<int>(rank));
  }
  check_offers(offers);
  return received;
}

// Second round, which every rank enters whatever came of the first: nobody has the segment unless
// all could map it. A rank's own error comes before the others'.
void agree(const RoundContext& round, const Offer& offer) {
  std::vector<PeerMesh::Received> received;
  const std::optional<Error> late = try_step([&] { received = round.exchange(offer, -1); });
  if (offer.error) throw *offer.error;
  if (late) throw *late;
  for (int rank = 0; rank < round.mesh.world_size(); ++rank) {
    if (rank == round.mesh.rank()) continue;
    throw_if_failed(parse_offer(received[static_cast<std::size_t>(rank)].message, rank), rank);
  }
}

struct ViewOwner {
  std::shared_ptr<AddressRange> range;
  std::vector<std::shared_ptr<Mapping>> mappings;
};

}  // namespace

LocalSegment::LocalSegment(DeviceRuntime& runtime, std::size_t bytes)
    : runtime_(runtime),
      bytes_(bytes),
      memory_(runtime.allocate(std::max<std::size_t>(bytes, 1))),
      mapping_(runtime.map(memory_)) {}

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

  const RoundContext round{mesh, sequence, Deadline(timeout), give_up};
  Offer offer{static_cast<std::uint32_t>(local->runtime().kind()), local->bytes(),
              local->mapped_bytes(), std::nullopt};
  offer.error = try_step([&] {
    std::vector<PeerMesh::Received> received = exchange_offers(round, *local, offer);
    for (std::size_t rank = 0; rank < world; ++rank) {
      if (rank == own) continue;
      segment->memories_[rank] = local->runtime().import_memory(
          std::move(received[rank].descriptor), local->mapped_bytes());
      segment->mappings_[rank] = local->runtime().map(segment->memories_[rank]);
      segment->bases_[rank] = segment->mappings_[rank]->base();
    }
  });
  agree(round, offer);
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
    owner->mappings.push_back(runtime.map_at(memories_[rank], owner->range, rank * stride));
  }
  view_ = {owner->range->base(), stride, owner};
  return view_;
}

}  // namespace symm
