// The flight record: its ring, the life of an entry, and what it reads of a device's counters.
// test/python/diagnostics reads the pickle with Python and with PyTorch's analyser.
#include "backend/engine/record/flight_record.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace symm {
namespace {

class FlightRecordTest : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 100;

  FlightTicket add(std::uint64_t number) {
    const FlightCall call{.name = "all_reduce", .collective = number};
    return record_.add(group_, call, [&](FlightTensors& tensors) {
      const auto size = static_cast<std::int64_t>(number);
      tensors.add({&size, 1}, "Float");
      tensors.outputs_follow();
    });
  }
  // How often the record has the string `text`.
  std::size_t count(const std::string& text) {
    const std::string dump = record_.dump();
    const std::string pickled = std::string{'X', static_cast<char>(text.size()), 0, 0, 0} + text;
    std::size_t found = 0;
    for (auto at = dump.find(pickled); at != std::string::npos; at = dump.find(pickled, at + 1)) {
      ++found;
    }
    return found;
  }

  FlightRecord record_{kSize};
  FlightGroup& group_ = record_.add_group("g", 0, {0, 1});
};

TEST_F(FlightRecordTest, KeepsTheLastCalls) {
  EXPECT_EQ(count("record_id"), 0u);
  for (std::uint64_t number = 1; number <= 3 * kSize + 7; ++number) {
    add(number).ended(true);
    EXPECT_EQ(count("record_id"), std::min<std::size_t>(number, kSize));
  }
  EXPECT_EQ(count("completed"), kSize);
}

TEST_F(FlightRecordTest, ATicketOfALaterCallIsAnother) {
  const FlightTicket first = add(1);
  for (std::uint64_t number = 2; number <= kSize + 1; ++number) add(number);
  first.started();
  first.ended(true);
  first.discard();
  EXPECT_EQ(count("scheduled"), kSize);
}

TEST_F(FlightRecordTest, ADiscardedCallWasNever) {
  add(1).ended(true);
  const FlightTicket refused = add(2);
  refused.discard();
  EXPECT_EQ(count("record_id"), 1u);
  add(2);
  refused.started();
  refused.ended(true);
  EXPECT_EQ(count("record_id"), 2u);
  EXPECT_EQ(count("scheduled"), 1u);
}

TEST_F(FlightRecordTest, ReadsTheCountersOfADevice) {
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
  add(1).on_device({&begun, &ended, 1});
  const FlightTicket second = add(2);
  second.on_device({&begun, &ended, 2});
  EXPECT_EQ(count("scheduled"), 2u);
  begun = 1;
  EXPECT_EQ(count("scheduled"), 1u);
  ended = 1;
  begun = 2;
  EXPECT_EQ(count("started"), 1u);
  EXPECT_EQ(count("completed"), 1u);
  ended = 2;
  record_.forget_counters(group_);
  begun = ended = 0;
  EXPECT_EQ(count("completed"), 2u);
}

TEST_F(FlightRecordTest, AFailedCallIsNotCompletedByTheDevice) {
  const std::uint64_t begun = 1;
  const std::uint64_t ended = 1;
  const FlightTicket ticket = add(1);
  ticket.on_device({&begun, &ended, 1});
  ticket.ended(false);
  EXPECT_EQ(count("started"), 1u);
  EXPECT_EQ(count("completed"), 0u);
}

// For the sanitizers: calls of several threads, read meanwhile.
TEST_F(FlightRecordTest, AGroupThatEndedIsThereAsLongAsItsCalls) {
  FlightGroup& other = record_.add_group("other", 0, {0, 1});
  const FlightCall call{.name = "broadcast", .collective = 1};
  record_.add(other, call, [](FlightTensors&) {}).ended(true);
  record_.end_group(other);
  for (std::uint64_t number = 1; number < kSize; ++number) add(number).ended(true);
  record_.add_group("third", 0, {0, 1});
  EXPECT_GT(count("other"), 0u);
  add(kSize).ended(true);
  record_.add_group("fourth", 0, {0, 1});
  EXPECT_EQ(count("other"), 0u);
  EXPECT_GT(count("third"), 0u);  // it has not ended
  EXPECT_EQ(count("record_id"), kSize);
}

TEST_F(FlightRecordTest, ServesSeveralThreads) {
  constexpr std::uint64_t kCalls = 2'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this] {
      for (std::uint64_t number = 1; number <= kCalls; ++number) {
        const FlightTicket ticket = add(number);
        ticket.started();
        ticket.ended(true);
      }
    });
  }
  for (int look = 0; look < 20; ++look) EXPECT_LE(count("record_id"), kSize);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count("record_id"), kSize);
}

}  // namespace
}  // namespace symm
