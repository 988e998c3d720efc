// What a rank may claim of the memory that it brings to a rendezvous.
#include "symm_mem/segment/segment_descriptor.hpp"

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

SegmentDescriptor allocated() {
  SegmentDescriptor descriptor;
  descriptor.bytes = 1000;
  descriptor.mapped_bytes = descriptor.chunk_bytes = kGranule;
  return descriptor;
}

SegmentDescriptor user_buffer() {
  SegmentDescriptor descriptor;
  descriptor.user_buffer = true;
  descriptor.bytes = 1000;
  descriptor.mapped_bytes = 3 * kGranule;
  descriptor.chunks = 2;
  descriptor.chunk_bytes = kGranule;
  descriptor.start = kGranule - 500;
  return descriptor;
}

std::optional<Error> error_with(SegmentDescriptor descriptor) {
  const std::vector<SegmentDescriptor> descriptors = {
      descriptor.user_buffer ? user_buffer() : allocated(),
      SegmentDescriptor::decode(descriptor.encode(), 1)};
  return error_of([&] { check_descriptors(descriptors); });
}

TEST(SegmentDescriptor, SurvivesTheJourney) {
  SegmentDescriptor sent = user_buffer();
  sent.device = 1;
  sent.gpu = {7, 8, 9};
  sent.multiprocessors = 132;
  sent.with_lines = {{{7, 8, 9}, {1}}};
  sent.free_rows.insert(3);
  sent.free_rows.insert(kMaxSegments - 1);
  const SegmentDescriptor got = SegmentDescriptor::decode(sent.encode(), 3);
  EXPECT_EQ(got.device, 1u);
  EXPECT_EQ(got.gpu, sent.gpu);
  EXPECT_EQ(got.multiprocessors, 132u);
  EXPECT_TRUE(got.with_lines.contains({1}));
  EXPECT_EQ(got.with_lines.gpus, sent.with_lines.gpus);
  EXPECT_EQ(got.bytes, 1000u);
  EXPECT_EQ(got.mapped_bytes, 3 * kGranule);
  EXPECT_TRUE(got.user_buffer);
  EXPECT_EQ(got.start, kGranule - 500);
  EXPECT_EQ(got.chunks, 2u);
  EXPECT_EQ(got.chunk_bytes, kGranule);
  EXPECT_EQ(got.free_rows, sent.free_rows);
  EXPECT_FALSE(got.error);
}

TEST(SegmentDescriptor, CutShortIsRefusedWhereverThatIs) {
  const std::vector<std::uint8_t> whole = user_buffer().encode();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    expect_error(error_of([&] { SegmentDescriptor::decode(std::span(whole).first(length), 7); }),
                 ErrorCode::kSecurity, {"rank 7", "malformed"});
  }
}

TEST(SegmentDescriptor, HonestOnesFit) {
  EXPECT_FALSE(error_with(allocated()));
  EXPECT_FALSE(error_with(user_buffer()));
  SegmentDescriptor otherwise = user_buffer();
  otherwise.start = 0;
  otherwise.chunks = 1;
  otherwise.mapped_bytes = otherwise.chunk_bytes = 10 * kGranule;
  EXPECT_FALSE(error_with(otherwise)) << "ranks may differ in how their memory is cut";
}

TEST(SegmentDescriptor, ClaimsThatCannotBeNameTheRank) {
  const std::vector<std::function<void(SegmentDescriptor&)>> lies = {
      [](SegmentDescriptor& o) { o.chunks = 0; },
      [](SegmentDescriptor& o) { o.chunks = SegmentDescriptor::kMaxChunks + 1; },
      [](SegmentDescriptor& o) { o.chunks = ~std::uint32_t{0}; },
      [](SegmentDescriptor& o) { o.mapped_bytes = SegmentDescriptor::kMaxMappedBytes + 1; },
      [](SegmentDescriptor& o) { o.mapped_bytes = ~std::uint64_t{0}; },
      [](SegmentDescriptor& o) { o.start = o.chunk_bytes; },
      [](SegmentDescriptor& o) { o.start = ~std::uint64_t{0}; },
      [](SegmentDescriptor& o) { o.mapped_bytes = o.start + o.bytes - 1; },
      [](SegmentDescriptor& o) { o.bytes = ~std::uint64_t{0}; },
      [](SegmentDescriptor& o) { o.chunk_bytes = 0; },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    SegmentDescriptor descriptor = user_buffer();
    lies[i](descriptor);
    SCOPED_TRACE(i);
    expect_error(error_with(descriptor), ErrorCode::kSecurity, {"rank 1", "cannot be"});
  }
  SegmentDescriptor chunked = allocated();
  chunked.chunks = 2;
  expect_error(error_with(chunked), ErrorCode::kSecurity, {"rank 1", "2 chunks"});
  SegmentDescriptor shifted = allocated();
  shifted.start = 1;
  expect_error(error_with(shifted), ErrorCode::kSecurity, {"rank 1", "byte 1"});
}

TEST(SegmentDescriptor, SizesThatDifferNameBoth) {
  SegmentDescriptor descriptor = user_buffer();
  descriptor.bytes = 1004;
  expect_error(error_with(descriptor), ErrorCode::kMismatch,
               {"same size", "1000 bytes", "1004 bytes"});
}

}  // namespace
}  // namespace symm
