// Which events the signals of several streams record and wait for. torch's streams and events are
// those of a guard that writes down what it is asked for.
#include "symm_mem/c10d/channel_order.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace symm::test {
namespace {

std::vector<std::string>& noted_calls() {
  static std::vector<std::string> calls;
  return calls;
}

// An event is the number of the call that recorded it.
class NotingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream.id() + 100));
    noted_calls().push_back("record " + std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const auto recorded = static_cast<long>(reinterpret_cast<std::uintptr_t>(event)) - 100;
    noted_calls().push_back(std::to_string(stream.id()) + " behind " + std::to_string(recorded));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

class ChannelOrderTest : public ::testing::Test {
 protected:
  using Calls = std::vector<std::string>;

  void SetUp() override {
    static const bool is_free = !c10::impl::hasDeviceGuardImpl(c10::kCUDA);
    if (!is_free) GTEST_SKIP() << "torch has GPUs here, its own or another test's";
    static const NotingGuard guard;
    c10::impl::registerDeviceGuard(c10::kCUDA, &guard);
    noted_calls().clear();
  }
  void signal(int stream, int channel, std::uint64_t capture = 0) {
    order_.run(stream_of(stream), capture, channel,
               [&] { noted_calls().push_back("launch " + std::to_string(stream)); });
  }
  static c10::Stream stream_of(int number) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), number);
  }
  static Calls take_calls() {
    Calls calls;
    calls.swap(noted_calls());
    return calls;
  }

  ChannelOrder order_;
};

TEST_F(ChannelOrderTest, OneStreamWaitsForNothing) {
  signal(1, 0);
  signal(1, 0);
  EXPECT_EQ(take_calls(), (Calls{"launch 1", "record 1", "launch 1", "record 1"}));
}

TEST_F(ChannelOrderTest, AnotherStreamComesBehindTheLastUseOfItsChannel) {
  signal(1, 0);
  signal(2, 5);
  take_calls();
  signal(2, 0);
  EXPECT_EQ(take_calls(), (Calls{"2 behind 1", "launch 2", "record 2"}));
  signal(3, 0);
  EXPECT_EQ(take_calls(), (Calls{"3 behind 2", "launch 3", "record 3"}));
  signal(3, 5);
  EXPECT_EQ(take_calls(), (Calls{"3 behind 2", "launch 3", "record 3"}));
  signal(1, 7);
  EXPECT_EQ(take_calls(), (Calls{"launch 1", "record 1"}));
}

TEST_F(ChannelOrderTest, ACaptureIsOrderedWithinItself) {
  signal(1, 0);
  take_calls();
  signal(2, 0, 11);
  EXPECT_EQ(take_calls(), (Calls{"launch 2", "record 2"})) << "behind what is outside";
  signal(3, 0, 11);
  EXPECT_EQ(take_calls(), (Calls{"3 behind 2", "launch 3", "record 3"}));
  signal(4, 0, 12);
  EXPECT_EQ(take_calls(), (Calls{"launch 4", "record 4"})) << "behind another capture";
  signal(2, 0);
  EXPECT_EQ(take_calls(), (Calls{"2 behind 1", "launch 2", "record 2"}))
      << "what was before the capture counts";
}

TEST_F(ChannelOrderTest, ALaunchThatFailsDoesNotCount) {
  signal(1, 0);
  EXPECT_THROW(order_.run(stream_of(2), 0, 0, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  take_calls();
  signal(3, 0);
  EXPECT_EQ(take_calls(), (Calls{"3 behind 1", "launch 3", "record 3"}));
}

}  // namespace
}  // namespace symm::test
