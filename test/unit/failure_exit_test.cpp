#include "symm_mem/group/failure_exit.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A failure that comes when the test says so, and the end that must follow it.
class FailureExitTest : public testing::Test {
 protected:
  FailureExit with_grace(milliseconds grace) {
    return FailureExit(
        watchdog_, grace,
        [this]() -> std::optional<Error> {
          if (!failed_) return std::nullopt;
          return Error(ErrorCode::kTimeout, "rank 1 did not come");
        },
        [this](const std::string& message) {
          const std::lock_guard lock(mutex_);
          if (message_.empty()) ended_at_ = steady_clock::now();
          message_ = message;
        });
  }
  std::string message() {
    const std::lock_guard lock(mutex_);
    return message_;
  }
  void await_end() {
    while (message().empty()) std::this_thread::sleep_for(milliseconds(1));
  }

  Watchdog watchdog_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string message_;
  steady_clock::time_point ended_at_;
};

TEST_F(FailureExitTest, EndsTheProcessAGraceTimeAfterTheFailure) {
  const FailureExit failure_exit = with_grace(milliseconds(60));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(message(), "");
  const auto failed_at = steady_clock::now();
  failed_ = true;
  await_end();
  EXPECT_EQ(message(), "rank 1 did not come");
  EXPECT_GE(ended_at_ - failed_at, milliseconds(60));
}

TEST_F(FailureExitTest, AGroupThatIsDestroyedInTimeEndsNothing) {
  {
    const FailureExit failure_exit = with_grace(milliseconds(200));
    failed_ = true;
    std::this_thread::sleep_for(milliseconds(50));
  }
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(message(), "");
}

TEST(FailureGrace, IsWhatTheEnvironmentSays) {
  const auto grace_of = [](std::optional<std::string> on_failure, std::optional<std::string> ms) {
    const ScopedVariable first("SYMM_ON_FAILURE", std::move(on_failure));
    const ScopedVariable second("SYMM_FAILURE_GRACE_MS", std::move(ms));
    return failure_grace_in_environment();
  };
  EXPECT_EQ(grace_of(std::nullopt, std::nullopt), std::nullopt);
  EXPECT_EQ(grace_of("raise", "7"), std::nullopt);
  EXPECT_EQ(grace_of("abort", std::nullopt), milliseconds(5000));
  EXPECT_EQ(grace_of("abort", "0"), milliseconds(0));
  for (const char* wrong : {"", "-1", "5s", "86400001", "99999999999999999999"}) {
    expect_error(error_of([&] { grace_of("abort", wrong); }), ErrorCode::kInvalidArgument,
                 {"SYMM_FAILURE_GRACE_MS", "86400000", "'" + std::string(wrong) + "'"});
  }
  expect_error(error_of([&] { grace_of("exit", std::nullopt); }), ErrorCode::kInvalidArgument,
               {"SYMM_ON_FAILURE", "raise or abort", "'exit'"});
}

}  // namespace
}  // namespace symm::test
