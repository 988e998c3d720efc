#include "symm_mem/bootstrap/peer_record.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using Bytes = std::vector<std::uint8_t>;

constexpr int kRank = 3;
constexpr int kWorldSize = 5;

PeerRecord sample() {
  PeerRecord record;
  record.rank = kRank;
  record.world_size = kWorldSize;
  record.process = {0x0123456789, 0x1112131415, 0x2122232425};
  record.uid = 0xfedcba98;
  record.mount_namespace = 0x1122334455667788;
  record.published = 0x3132333435363738;
  for (std::size_t i = 0; i < record.nonce.size(); ++i) {
    record.nonce[i] = static_cast<std::uint8_t>(200 + i);
  }
  record.boot_id = "01234567-89ab-cdef-0123-456789abcdef";
  record.socket_path = "/tmp/symm-abc123/s";
  record.payload = {9, 8, 7, 0, 255};
  return record;
}

TEST(PeerRecord, RoundTrip) {
  const PeerRecord sent = sample();
  const PeerRecord got = parse_peer_record(encode_peer_record(sent), kRank);
  EXPECT_EQ(got.rank, sent.rank);
  EXPECT_EQ(got.world_size, sent.world_size);
  EXPECT_EQ(got.process, sent.process);
  EXPECT_EQ(got.uid, sent.uid);
  EXPECT_EQ(got.mount_namespace, sent.mount_namespace);
  EXPECT_EQ(got.published, sent.published);
  EXPECT_EQ(got.joining, sent.joining);
  EXPECT_EQ(got.nonce, sent.nonce);
  EXPECT_EQ(got.boot_id, sent.boot_id);
  EXPECT_EQ(got.socket_path, sent.socket_path);
  EXPECT_EQ(got.payload, sent.payload);
}

TEST(PeerRecord, LayoutIsTheDocumentedOne) {
  const Bytes bytes = encode_peer_record(sample());
  const Bytes start = {0x73, 0x70, 0x64, 0x72, 3,    0,    0,    0,    3,    0,    0,    0,    5,
                       0,    0,    0,    0x89, 0x67, 0x45, 0x23, 0x01, 0,    0,    0,    0x15, 0x14,
                       0x13, 0x12, 0x11, 0,    0,    0,    0x25, 0x24, 0x23, 0x22, 0x21, 0,    0,
                       0,    0x98, 0xba, 0xdc, 0xfe, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
                       0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 1,    0,    0,    0,    200};
  ASSERT_GT(bytes.size(), start.size());
  EXPECT_EQ(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(start.size())), start);
  EXPECT_EQ(bytes.size(), 64u + 16 + (4 + 36) + (4 + 18) + (4 + 5));
}

TEST(PeerRecord, EveryTruncationAndExtensionIsRefused) {
  const Bytes whole = encode_peer_record(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    expect_error(error_of([&] { parse_peer_record(cut, kRank); }), ErrorCode::kSecurity,
                 {"rank 3"});
  }
  Bytes longer = whole;
  longer.push_back(0);
  expect_error(error_of([&] { parse_peer_record(longer, kRank); }), ErrorCode::kSecurity,
               {"rank 3"});
}

TEST(PeerRecord, HugeLengthsAreRefused) {
  const std::size_t boot_id_length = 64 + 16;
  for (const std::size_t at :
       {boot_id_length, boot_id_length + 4 + 36, boot_id_length + 4 + 36 + 4 + 18}) {
    Bytes bytes = encode_peer_record(sample());
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = 0xff;
    expect_error(error_of([&] { parse_peer_record(bytes, kRank); }), ErrorCode::kSecurity,
                 {"rank 3"});
  }
}

TEST(PeerRecord, PayloadBound) {
  PeerRecord record = sample();
  record.payload.assign(PeerRecord::kMaxPayload, 0xa5);
  EXPECT_EQ(parse_peer_record(encode_peer_record(record), kRank).payload, record.payload);
  record.payload.push_back(0xa5);
  expect_error(error_of([&] { parse_peer_record(encode_peer_record(record), kRank); }),
               ErrorCode::kSecurity, {"rank 3"});
}

TEST(PeerRecord, WrongContentsAreRefused) {
  const auto refused = [](ErrorCode code, const std::string& word, auto change) {
    PeerRecord record = sample();
    change(record);
    const Bytes bytes = encode_peer_record(record);
    expect_error(error_of([&] { parse_peer_record(bytes, kRank); }), code, {"rank 3", word});
  };
  refused(ErrorCode::kSecurity, "rank 2", [](PeerRecord& r) { r.rank = 2; });
  refused(ErrorCode::kSecurity, "state", [](PeerRecord& r) { r.joining = 2; });
  refused(ErrorCode::kSecurity, "pid", [](PeerRecord& r) { r.process.pid = -1; });
  refused(ErrorCode::kSecurity, "boot id", [](PeerRecord& r) { r.boot_id = "a b"; });
  refused(ErrorCode::kSecurity, "path", [](PeerRecord& r) { r.socket_path = "tmp/s"; });
  refused(ErrorCode::kSecurity, "path", [](PeerRecord& r) { r.socket_path = ""; });
  refused(ErrorCode::kSecurity, "path", [](PeerRecord& r) { r.socket_path = "/tmp/\x1b[2J"; });
  refused(ErrorCode::kSecurity, "path",
          [](PeerRecord& r) { r.socket_path = std::string("/tmp/s\0x", 8); });
  Bytes other_version = encode_peer_record(sample());
  other_version[4] = 1;
  expect_error(error_of([&] { parse_peer_record(other_version, kRank); }), ErrorCode::kMismatch,
               {"version 3", "got 1"});
}

TEST(PeerRecord, AnotherWorldSizeIsAMismatch) {
  check_world_size(sample(), kWorldSize);
  expect_error(error_of([&] { check_world_size(sample(), kWorldSize + 1); }), ErrorCode::kMismatch,
               {"rank 3", "5 ranks", "6"});
}

TEST(PeerRecord, ChangedAndRandomBytesNeverCrash) {
  std::mt19937 random(20240607);
  const Bytes whole = encode_peer_record(sample());
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Bytes bytes = whole;
    if (trial % 2 == 0) {
      bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
    } else {
      bytes.resize(random() % 256);
      for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
      ASSERT_TRUE(error_of([&] { parse_peer_record(bytes, kRank); }).has_value());
    }
    refused += error_of([&] { parse_peer_record(bytes, kRank); }) ? 1 : 0;
  }
  EXPECT_GT(refused, 10000);
}

TEST(PeerFrame, HelloRoundTripAndRefusals) {
  HelloFrame hello{7, {}, 0x4142434445464748};
  for (std::size_t i = 0; i < hello.nonce.size(); ++i) {
    hello.nonce[i] = static_cast<std::uint8_t>(i + 1);
  }
  const Bytes whole = encode_hello(hello);
  ASSERT_EQ(whole.size(), HelloFrame::kBytes);
  const auto got = parse_hello(whole);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->rank, 7u);
  EXPECT_EQ(got->nonce, hello.nonce);
  EXPECT_EQ(got->published, hello.published);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_hello(std::span(whole).first(size)).has_value()) << size;
  }
  for (const std::size_t at : {0, 4, 12}) {  // magic, version, zero
    Bytes changed = whole;
    changed[at] ^= 0x80;
    EXPECT_FALSE(parse_hello(changed).has_value()) << at;
  }
}

TEST(PeerFrame, ExchangeRoundTripAndRefusals) {
  const Bytes message = {5, 4, 3, 2, 1};
  for (const int flags : {0, 1, 2, 3}) {
    const bool with_descriptor = (flags & 1) != 0;
    const FrameKind kind = (flags & 2) != 0 ? FrameKind::kPost : FrameKind::kExchange;
    const FrameStream stream =
        flags < 2 ? FrameStream::kCollectives : FrameStream::kSymmetricMemory;
    const Bytes whole =
        encode_exchange({stream, 0x0102030405060708}, with_descriptor, message, kind);
    EXPECT_EQ(whole[4], flags) << "the documented bits";
    const auto got = parse_exchange(whole);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->kind, kind);
    EXPECT_EQ(got->position.stream, stream);
    EXPECT_EQ(got->position.number, 0x0102030405060708u);
    EXPECT_EQ(got->has_descriptor, with_descriptor);
    EXPECT_EQ(got->message, message);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(parse_exchange(std::span(whole).first(size)).has_value()) << size;
    }
    for (const std::size_t at : {0, 5, 16, 19, 20}) {  // magic, flags, length twice, stream
      Bytes changed = whole;
      changed[at] ^= 0x80;
      EXPECT_FALSE(parse_exchange(changed).has_value()) << at;
    }
    Bytes unknown_flag = whole;
    unknown_flag[4] ^= 4;
    EXPECT_FALSE(parse_exchange(unknown_flag).has_value());
  }
  EXPECT_TRUE(
      parse_exchange(encode_exchange(1, false, Bytes(ExchangeFrame::kMaxMessage))).has_value());
  EXPECT_FALSE(
      parse_exchange(encode_exchange(1, false, Bytes(ExchangeFrame::kMaxMessage + 1))).has_value());
}

}  // namespace
}  // namespace symm
