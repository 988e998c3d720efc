// The streams of groups, on a fake GPU.
#include "backend/streams/stream_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "symm_mem/c10d/gpu_access.hpp"
#include "test/support/fake_gpu.hpp"
#include "test/support/torch_on_fake_gpus.hpp"

namespace symm::test {
namespace {

class StreamPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!use_fake_gpus()) GTEST_SKIP() << "torch has GPUs of its own here";
  }
  void TearDown() override { FakeGuard::streams_are_idle = true; }

  c10::Stream take(bool high_priority = false) {
    return take_stream(gpus_[kIndex], device_, high_priority);
  }

  static constexpr int kIndex = 2;
  const c10::Device device_{c10::kCUDA, kIndex};
  FakeGpus gpus_;
};

TEST_F(StreamPoolTest, NoTwoUsesShareAStream) {
  constexpr int kMany = 100;  // more than torch has
  std::vector<c10::StreamId> ids;
  for (int i = 0; i < kMany; ++i) ids.push_back(take(i % 2 == 0).id());
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
}

TEST_F(StreamPoolTest, AStreamIsNamedByItsHandle) {
  const c10::Stream stream = take();
  EXPECT_EQ(stream.device(), device_);
  EXPECT_EQ(reinterpret_cast<c10::StreamId>(stream.native_handle()), stream.id());
}

TEST_F(StreamPoolTest, AStreamThatWasGivenBackIsTakenAgain) {
  const c10::Stream stream = take(true);
  give_back_stream(stream, true);
  EXPECT_NE(take(false), stream) << "of another priority";
  EXPECT_NE(take_stream(gpus_[3], {c10::kCUDA, 3}, true), stream) << "on another device";
  EXPECT_EQ(take(true), stream);
}

TEST_F(StreamPoolTest, ReservedStreamsAreTaken) {
  constexpr std::size_t kReserved = 5;
  const c10::Device device(c10::kCUDA, 1);
  const auto reserve = [&] { reserve_streams(gpus_[1], device, true, kReserved); };
  const auto made = [&] { return reinterpret_cast<c10::StreamId>(gpus_[1].make_stream(true)); };
  reserve();
  const c10::StreamId behind = made();
  reserve();
  for (std::size_t i = 0; i < kReserved; ++i) {
    EXPECT_LT(take_stream(gpus_[1], device, true).id(), behind);
  }
  EXPECT_GT(take_stream(gpus_[1], device, true).id(), behind);
}

TEST_F(StreamPoolTest, AStreamThatIsBusyOrCapturedWaits) {
  const c10::Stream stream = take(true);
  give_back_stream(stream, true);
  FakeGuard::streams_are_idle = false;
  EXPECT_NE(take(true), stream);
  FakeGuard::streams_are_idle = true;
  EXPECT_EQ(take(true), stream);

  const auto captured = reinterpret_cast<c10::StreamId>(FakeGpu::captured_stream());
  const c10::Stream in_capture(c10::Stream::UNSAFE, device_, captured);
  give_back_stream(in_capture, true);
  EXPECT_NE(take(true), in_capture);
}

}  // namespace
}  // namespace symm::test
