// What a rank may claim of the memory that it brings to a rendezvous.
#include "symm_mem/segment/segment_offer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

SegmentOffer allocated() {
  SegmentOffer offer;
  offer.bytes = 1000;
  offer.mapped_bytes = offer.piece_bytes = kGranule;
  return offer;
}

SegmentOffer adopted() {
  SegmentOffer offer;
  offer.adopted = true;
  offer.bytes = 1000;
  offer.mapped_bytes = 3 * kGranule;
  offer.pieces = 2;
  offer.piece_bytes = kGranule;
  offer.start = kGranule - 500;
  return offer;
}

std::optional<Error> error_with(SegmentOffer offer) {
  const std::vector<SegmentOffer> offers = {offer.adopted ? adopted() : allocated(),
                                            SegmentOffer::decode(offer.encode(), 1)};
  return error_of([&] { check_offers(offers); });
}

TEST(SegmentOffer, SurvivesTheJourney) {
  SegmentOffer sent = adopted();
  sent.device = 1;
  const SegmentOffer got = SegmentOffer::decode(sent.encode(), 3);
  EXPECT_EQ(got.device, 1u);
  EXPECT_EQ(got.bytes, 1000u);
  EXPECT_EQ(got.mapped_bytes, 3 * kGranule);
  EXPECT_TRUE(got.adopted);
  EXPECT_EQ(got.start, kGranule - 500);
  EXPECT_EQ(got.pieces, 2u);
  EXPECT_EQ(got.piece_bytes, kGranule);
  EXPECT_FALSE(got.error);
}

TEST(SegmentOffer, CutShortIsRefusedWhereverThatIs) {
  const std::vector<std::uint8_t> whole = adopted().encode();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    expect_error(error_of([&] { SegmentOffer::decode(std::span(whole).first(length), 7); }),
                 ErrorCode::kSecurity, {"rank 7", "malformed"});
  }
}

TEST(SegmentOffer, HonestOnesFit) {
  EXPECT_FALSE(error_with(allocated()));
  EXPECT_FALSE(error_with(adopted()));
  SegmentOffer otherwise = adopted();
  otherwise.start = 0;
  otherwise.pieces = 1;
  otherwise.mapped_bytes = otherwise.piece_bytes = 10 * kGranule;
  EXPECT_FALSE(error_with(otherwise)) << "ranks may differ in how their memory is cut";
}

TEST(SegmentOffer, ClaimsThatCannotBeNameTheRank) {
  const std::vector<std::function<void(SegmentOffer&)>> lies = {
      [](SegmentOffer& o) { o.pieces = 0; },
      [](SegmentOffer& o) { o.pieces = SegmentOffer::kMaxPieces + 1; },
      [](SegmentOffer& o) { o.pieces = ~std::uint32_t{0}; },
      [](SegmentOffer& o) { o.mapped_bytes = SegmentOffer::kMaxMappedBytes + 1; },
      [](SegmentOffer& o) { o.mapped_bytes = ~std::uint64_t{0}; },
      [](SegmentOffer& o) { o.start = o.piece_bytes; },
      [](SegmentOffer& o) { o.start = ~std::uint64_t{0}; },
      [](SegmentOffer& o) { o.mapped_bytes = o.start + o.bytes - 1; },
      [](SegmentOffer& o) { o.bytes = ~std::uint64_t{0}; },
      [](SegmentOffer& o) { o.piece_bytes = 0; },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    SegmentOffer offer = adopted();
    lies[i](offer);
    SCOPED_TRACE(i);
    expect_error(error_with(offer), ErrorCode::kSecurity, {"rank 1", "cannot be"});
  }
  SegmentOffer pieced = allocated();
  pieced.pieces = 2;
  expect_error(error_with(pieced), ErrorCode::kSecurity, {"rank 1", "2 pieces"});
  SegmentOffer shifted = allocated();
  shifted.start = 1;
  expect_error(error_with(shifted), ErrorCode::kSecurity, {"rank 1", "byte 1"});
}

TEST(SegmentOffer, SizesThatDifferNameBoth) {
  SegmentOffer offer = adopted();
  offer.bytes = 1004;
  expect_error(error_with(offer), ErrorCode::kMismatch, {"same size", "1000 bytes", "1004 bytes"});
}

}  // namespace
}  // namespace symm
