#include "symm_mem/segment/handle_choice.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;

FabricHandle some_handle() {
  FabricHandle handle;
  std::iota(handle.bytes.begin(), handle.bytes.end(), std::uint8_t{3});
  return handle;
}

HandleDescriptor handles(HandlePreference preference, bool descriptor, bool fabric) {
  HandleDescriptor made;
  made.preference = preference;
  made.has_descriptor = descriptor;
  if (fabric) made.fabric = some_handle();
  return made;
}

const HandleDescriptor kBoth = handles(HandlePreference::kAuto, true, true);
const HandleDescriptor kDescriptor = handles(HandlePreference::kAuto, true, false);
const HandleDescriptor kFabric = handles(HandlePreference::kAuto, false, true);
const HandleDescriptor kWantsFabric = handles(HandlePreference::kFabric, false, true);
const HandleDescriptor kWantsPosix = handles(HandlePreference::kPosix, true, false);

HandleKind choice(const std::vector<HandleDescriptor>& ranks) { return choose_handle_kind(ranks); }

TEST(HandleChoice, DescriptorsWhereAllHaveThem) {
  EXPECT_EQ(choice({kBoth, kBoth}), HandleKind::kDescriptor);
  EXPECT_EQ(choice({kBoth, kDescriptor, kBoth}), HandleKind::kDescriptor);
  EXPECT_EQ(choice({kWantsPosix, kBoth}), HandleKind::kDescriptor);
}

TEST(HandleChoice, FabricWhereOneRankAsksOrHasNoDescriptor) {
  EXPECT_EQ(choice({kBoth, kFabric}), HandleKind::kFabric);
  EXPECT_EQ(choice({kBoth, kBoth, kWantsFabric}), HandleKind::kFabric);
  EXPECT_EQ(choice({kWantsFabric, kWantsFabric}), HandleKind::kFabric);
}

TEST(HandleChoice, WishesThatDifferNameBothRanks) {
  expect_error(error_of([] {
                 choice({kBoth, kWantsPosix, kWantsFabric});
               }),
               ErrorCode::kMismatch, {"SYMM_HANDLE_TYPE", "fabric on rank 2", "posix on rank 1"});
}

TEST(HandleChoice, WhatARankLacksIsNamed) {
  expect_error(error_of([] {
                 choice({kWantsFabric, kBoth, kDescriptor});
               }),
               ErrorCode::kUnsupported,
               {"SYMM_HANDLE_TYPE=fabric on rank 0", "rank 2 has no fabric handle"});
  expect_error(error_of([] {
                 choice({kFabric, kWantsPosix});
               }),
               ErrorCode::kUnsupported,
               {"SYMM_HANDLE_TYPE=posix on rank 1", "rank 0 has no descriptor"});
  expect_error(error_of([] {
                 choice({kBoth, kDescriptor, kFabric});
               }),
               ErrorCode::kUnsupported, {"rank 2 has no descriptor", "rank 1 no fabric handle"});
}

TEST(HandleChoice, DescriptorsTravelWhole) {
  for (const HandleDescriptor& sent : {kBoth, kDescriptor, kFabric, kWantsFabric, kWantsPosix}) {
    ByteWriter writer;
    sent.write(writer);
    const std::vector<std::uint8_t> bytes = writer.take();
    ByteReader reader(bytes);
    const HandleDescriptor read = HandleDescriptor::read(reader);
    EXPECT_TRUE(reader.finished());
    EXPECT_EQ(read.preference, sent.preference);
    EXPECT_EQ(read.has_descriptor, sent.has_descriptor);
    ASSERT_EQ(read.fabric.has_value(), sent.fabric.has_value());
    if (read.fabric) {
      EXPECT_EQ(read.fabric->bytes, some_handle().bytes);
    }
  }
}

TEST(HandleChoice, MalformedDescriptorsHoldNoHandle) {
  ByteWriter writer;
  writer.integer(std::uint32_t{3});  // no preference
  writer.integer(std::uint32_t{1});
  writer.sized(std::vector<std::uint8_t>(64, 1));
  const std::vector<std::uint8_t> unknown = writer.take();
  ByteReader reader(unknown);
  EXPECT_FALSE(HandleDescriptor::read(reader).has_descriptor);
  ByteWriter second;
  second.integer(std::uint32_t{0});
  second.integer(std::uint32_t{2});  // neither yes nor no
  second.sized(std::vector<std::uint8_t>(63, 1));
  const std::vector<std::uint8_t> cut = second.take();
  ByteReader cut_reader(cut);
  const HandleDescriptor read = HandleDescriptor::read(cut_reader);
  EXPECT_FALSE(read.has_descriptor);
  EXPECT_FALSE(read.fabric);
  ByteReader empty{{}};
  EXPECT_FALSE(HandleDescriptor::read(empty).has_descriptor);
  EXPECT_TRUE(empty.failed());
}

TEST(HandleChoice, TheVariableIsChecked) {
  const std::pair<const char*, HandlePreference> legal[] = {{"auto", HandlePreference::kAuto},
                                                            {"posix", HandlePreference::kPosix},
                                                            {"fabric", HandlePreference::kFabric}};
  for (const auto& [value, preference] : legal) {
    const test::ScopedVariable set("SYMM_HANDLE_TYPE", value);
    EXPECT_EQ(handle_preference(), preference) << value;
    EXPECT_EQ(handle_preference_name(preference), value);
  }
  const test::ScopedVariable unset("SYMM_HANDLE_TYPE", std::nullopt);
  EXPECT_EQ(handle_preference(), HandlePreference::kAuto);
  for (const char* value : {"", "POSIX", "fd", "fabric "}) {
    const test::ScopedVariable set("SYMM_HANDLE_TYPE", value);
    expect_error(error_of([] { handle_preference(); }), ErrorCode::kInvalidArgument,
                 {"SYMM_HANDLE_TYPE", "auto, posix or fabric", "\"" + std::string(value) + "\""});
  }
}

TEST(HandleChoice, HostMemoryGoesByDescriptorsWhateverIsAsked) {
  const test::ScopedVariable fabric("SYMM_HANDLE_TYPE", "fabric");
  const auto memory = host_runtime().allocate(1);
  const ExportedMemory exported = export_by_every_kind(host_runtime(), *memory);
  EXPECT_TRUE(exported.descriptor.valid());
  EXPECT_EQ(choice({exported.handles, exported.handles}), HandleKind::kDescriptor);
  expect_error(error_of([&] { host_runtime().export_memory(*memory, HandleKind::kFabric); }),
               ErrorCode::kUnsupported, {"no fabric handles"});
  expect_error(error_of([&] { host_runtime().import_memory(some_handle(), memory->bytes()); }),
               ErrorCode::kSecurity, {"fabric handle"});
}

}  // namespace
}  // namespace symm
