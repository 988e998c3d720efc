// Signals on GPUs as the host sees them, over fake GPUs: what their kernels are told, and what
// becomes of a group whose device a signal has ended.
#include "symm_mem/group/device_signals.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/process/deadline.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/fake_gpu.hpp"
#include "test/support/local_groups.hpp"

namespace symm::test {
namespace {

constexpr char kVariable[] = "SYMM_SIGNAL_TRAP";

class DeviceSignalsTest : public ::testing::Test {
 protected:
  void make(int world) {
    groups_ = connect_groups(world);
    for (int rank = 0; rank < world; ++rank) {
      signals_.push_back(std::make_unique<DeviceSignals>(gpus_[rank], of(groups_, rank)));
    }
  }
  void leave(int rank) { of(groups_, rank).leave(); }
  // The failure that the watchdog or a kernel has found.
  std::optional<Error> failure_of(int rank) {
    const Deadline deadline(kTimeout);
    while (!gpus_[rank].signals().failure() && !deadline.passed()) std::this_thread::yield();
    return gpus_[rank].signals().failure();
  }

  FakeGpus gpus_;
  Groups groups_;
  std::vector<std::unique_ptr<DeviceSignals>> signals_;
};

TEST_F(DeviceSignalsTest, KernelsTrapWhereTheEnvironmentAsksForIt) {
  const auto traps_with = [this](std::optional<std::string> value) {
    const ScopedVariable variable(kVariable, std::move(value));
    const Groups alone = connect_groups(1);
    const DeviceSignals signals(gpus_[0], of(alone, 0));
    return gpus_[0].signals().config().traps;
  };
  EXPECT_FALSE(traps_with(std::nullopt));
  EXPECT_FALSE(traps_with("0"));
  EXPECT_TRUE(traps_with("1"));
}

TEST_F(DeviceSignalsTest, AWrongValueIsRefusedAndNamed) {
  const ScopedVariable variable(kVariable, "yes");
  const Groups alone = connect_groups(1);
  expect_error(error_of([&] { DeviceSignals(gpus_[0], of(alone, 0)); }),
               ErrorCode::kInvalidArgument, {kVariable, "expected 0 or 1", "'yes'"});
}

// By which the kernels know a lost rank from the end of the own group.
TEST_F(DeviceSignalsTest, WhyWaitsEndIsToldApart) {
  make(3);
  leave(2);
  expect_error(failure_of(0), ErrorCode::kPeerLost,
               {"rank 2 (global rank 12)", "has ended or left"});
  EXPECT_EQ(gpus_[0].signals().lost(), std::uint64_t{1} << 2);
  of(groups_, 1).fail(Error(ErrorCode::kAborted, "the program gave up"));
  while (gpus_[1].signals().lost() != ~std::uint64_t{0}) std::this_thread::yield();
}

// A process whose peer has gone first may have long to do yet.
TEST_F(DeviceSignalsTest, APeerThatLeavesEndsNoProcessThatDoesNotWaitForIt) {
  make(2);
  leave(1);
  expect_error(failure_of(0), ErrorCode::kPeerLost, {"has ended or left"});
  EXPECT_FALSE(signals_[0]->failure());
  gpus_[0].signals().time_out(1);
  expect_error(signals_[0]->failure(), ErrorCode::kTimeout, {"waited for rank 1"});
}

TEST_F(DeviceSignalsTest, AGroupThatFailsEndsTheProcess) {
  make(2);
  EXPECT_FALSE(signals_[0]->failure());
  of(groups_, 0).fail(Error(ErrorCode::kSystem, "the device is lost"));
  const Deadline deadline(kTimeout);
  while (!signals_[0]->failure() && !deadline.passed()) std::this_thread::yield();
  expect_error(signals_[0]->failure(), ErrorCode::kSystem, {"the device is lost"});
}

// A trap leaves the device in error, and the group can be left and destroyed.
TEST_F(DeviceSignalsTest, AGroupWhoseDeviceASignalHasEndedIsLeft) {
  const ScopedVariable variable(kVariable, "1");
  make(2);
  gpus_[0].signals().time_out(1);
  EXPECT_TRUE(gpus_[0].is_in_error());
  expect_error(error_of([&] { signals_[0]->kernels().check(); }), ErrorCode::kTimeout,
               {"waited for rank 1 (global rank 11)"});
  of(groups_, 0).pending_work().finish();
  leave(0);
  EXPECT_GE(gpus_[0].synchronizations, 1);
  signals_.clear();
  gpus_[0].in_error = false;
}

}  // namespace
}  // namespace symm::test
