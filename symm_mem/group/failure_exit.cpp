#include "symm_mem/group/failure_exit.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace symm {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

void end_process(const std::string& message) {
  const std::string line = "symm: " + message +
                           "; the process ends, as SYMM_ON_FAILURE=abort asks: destroy a group "
                           "that has failed, or raise SYMM_FAILURE_GRACE_MS, to go on\n";
  static_cast<void>(std::fputs(line.c_str(), stderr));
  static_cast<void>(std::fflush(stderr));
  std::abort();
}

milliseconds grace_in_environment() {
  constexpr milliseconds kDefault{5'000};
  constexpr std::int64_t kMost = 86'400'000;  // a day
  const char* const text = std::getenv("SYMM_FAILURE_GRACE_MS");
  if (text == nullptr) return kDefault;
  std::int64_t value = -1;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || rest != end || value < 0 || value > kMost) {
    throw Error(ErrorCode::kInvalidArgument,
                "SYMM_FAILURE_GRACE_MS: expected milliseconds from 0 to ", kMost, ", got '", text,
                "'");
  }
  return milliseconds(value);
}

}  // namespace

std::optional<milliseconds> failure_grace_in_environment() {
  const char* const value = std::getenv("SYMM_ON_FAILURE");
  const std::string text = value == nullptr ? "raise" : value;
  const milliseconds grace = grace_in_environment();
  if (text == "raise") return std::nullopt;
  if (text == "abort") return grace;
  throw Error(ErrorCode::kInvalidArgument, "SYMM_ON_FAILURE: expected raise or abort, got '", text,
              "'");
}

std::unique_ptr<FailureExit> FailureExit::of_environment(Watchdog& watchdog, Failure failure) {
  const std::optional<milliseconds> grace = failure_grace_in_environment();
  if (!grace) return nullptr;
  return std::make_unique<FailureExit>(watchdog, *grace, std::move(failure), &end_process);
}

FailureExit::FailureExit(Watchdog& watchdog, milliseconds grace, Failure failure, End end)
    : watchdog_(watchdog), grace_(grace), failure_(std::move(failure)), end_(std::move(end)) {
  watchdog_.add(*this);
}

FailureExit::~FailureExit() { watchdog_.remove(*this); }

void FailureExit::look(bool /*at_connections*/) {
  const std::optional<Error> failure = failure_();
  if (!failure) return;
  if (!failed_at_) failed_at_ = Clock::now();
  if (Clock::now() - *failed_at_ >= grace_) end_(failure->what());
}

}  // namespace symm
