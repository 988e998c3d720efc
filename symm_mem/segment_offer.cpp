#include "symm_mem/segment_offer.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "symm_mem/byte_codec.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kOfferMagic = 0x6d676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxErrorText = 1024;

std::string size_text(const SegmentOffer& offer) {
  return std::to_string(offer.bytes) + " bytes (" + std::to_string(offer.mapped_bytes) + " mapped)";
}

}  // namespace

std::vector<std::uint8_t> SegmentOffer::encode() const {
  ByteWriter writer;
  writer.integer(kOfferMagic);
  writer.integer(device);
  writer.integer(bytes);
  writer.integer(mapped_bytes);
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
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    const SegmentOffer& first = offers[0];
    const SegmentOffer& other = offers[rank];
    if (other.device != first.device) {
      throw Error(ErrorCode::kMismatch, "rendezvous: rank 0 and rank " + std::to_string(rank) +
                                            " brought memory of different devices");
    }
    if (other.mapped_bytes != first.mapped_bytes) {
      throw Error(ErrorCode::kMismatch,
                  "rendezvous: every rank must bring a segment of the same size; rank 0 brought " +
                      size_text(first) + ", rank " + std::to_string(rank) + " brought " +
                      size_text(other));
    }
  }
}

}  // namespace symm
