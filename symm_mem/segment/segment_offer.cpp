#include "symm_mem/segment/segment_offer.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kOfferMagic = 0x6d676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxErrorText = 1024;

std::string size_text(const SegmentOffer& offer) {
  return std::to_string(offer.bytes) + " bytes (" + std::to_string(offer.mapped_bytes) + " mapped)";
}

// Of a rank's first offer. Each piece's size is held against the sum as the pieces come.
void check_claims(const SegmentOffer& offer, std::size_t rank) {
  const bool fits = offer.start < offer.piece_bytes && offer.start <= offer.mapped_bytes &&
                    offer.bytes <= offer.mapped_bytes - offer.start;
  const bool sane = offer.adopted
                        ? offer.mapped_bytes <= SegmentOffer::kMaxMappedBytes &&
                              offer.pieces >= 1 && offer.pieces <= SegmentOffer::kMaxPieces && fits
                        : offer.pieces == 1 && offer.start == 0 && fits;
  if (sane) return;
  throw Error(ErrorCode::kSecurity, "rendezvous: rank " + std::to_string(rank) + " offered " +
                                        size_text(offer) + " in " + std::to_string(offer.pieces) +
                                        " pieces from byte " + std::to_string(offer.start) +
                                        " on, which cannot be");
}

}  // namespace

std::vector<std::uint8_t> SegmentOffer::encode() const {
  ByteWriter writer;
  writer.integer(kOfferMagic);
  writer.integer(device);
  writer.integer(bytes);
  writer.integer(mapped_bytes);
  writer.integer(static_cast<std::uint32_t>(adopted));
  writer.integer(start);
  writer.integer(pieces);
  writer.integer(piece_bytes);
  handles.write(writer);
  multicast.write(writer);
  writer.integer(error ? static_cast<std::uint32_t>(error->code()) : kNoError);
  const std::string text = error ? error->what() : "";
  writer.sized(std::string_view(text).substr(0, kMaxErrorText));
  return writer.take();
}

SegmentOffer SegmentOffer::decode(std::span<const std::uint8_t> bytes, int rank) {
  ByteReader reader(bytes);
  const auto magic = reader.integer<std::uint32_t>();
  SegmentOffer offer;
  offer.device = reader.integer<std::uint32_t>();
  offer.bytes = reader.integer<std::uint64_t>();
  offer.mapped_bytes = reader.integer<std::uint64_t>();
  offer.adopted = reader.integer<std::uint32_t>() != 0;
  offer.start = reader.integer<std::uint64_t>();
  offer.pieces = reader.integer<std::uint32_t>();
  offer.piece_bytes = reader.integer<std::uint64_t>();
  offer.handles = HandleOffer::read(reader);
  offer.multicast = MulticastStanding::read(reader);
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

void SegmentOffer::throw_if_failed(int rank) const {
  if (!error) return;
  throw Error(error->code(),
              "rendezvous: rank " + std::to_string(rank) + " failed: " + error->what());
}

void check_offers(std::span<const SegmentOffer> offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    offers[rank].throw_if_failed(static_cast<int>(rank));
  }
  bool adopted = false;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    check_claims(offers[rank], rank);
    adopted = adopted || offers[rank].adopted;
  }
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    const SegmentOffer& first = offers[0];
    const SegmentOffer& other = offers[rank];
    if (other.device != first.device) {
      throw Error(ErrorCode::kMismatch, "rendezvous: rank 0 and rank " + std::to_string(rank) +
                                            " brought memory of different devices");
    }
    if (adopted ? other.bytes != first.bytes : other.mapped_bytes != first.mapped_bytes) {
      throw Error(ErrorCode::kMismatch,
                  "rendezvous: every rank must bring a segment of the same size; rank 0 brought " +
                      size_text(first) + ", rank " + std::to_string(rank) + " brought " +
                      size_text(other));
    }
  }
}

}  // namespace symm
