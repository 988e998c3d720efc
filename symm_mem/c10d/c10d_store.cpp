#include "symm_mem/c10d/c10d_store.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

namespace {

std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

// Returns when `key` is there or the time-out has passed; other failures are thrown on.
void wait_at_most(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout) {
  // The kinds of store report a time-out by different exception types, so the clock decides. A
  // store may give up a little early by its own clock.
  constexpr std::chrono::milliseconds kClockSlack{10};
  const Deadline deadline(timeout - kClockSlack);
  try {
    store.wait({key}, timeout);
  } catch (const std::exception&) {
    if (!deadline.passed()) throw;
  }
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {
  if (!store_) throw Error(ErrorCode::kInvalidArgument, "store: expected a Store, got None");
}

void C10dStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  try {
    store_->set(key, value);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kSystem, "the store refused to set '", key, "': ", words_of(error));
  }
}

std::vector<std::uint8_t> C10dStore::get(const std::string& key,
                                         std::chrono::milliseconds timeout) {
  // FileStore counts whole seconds and may wait one longer than asked, so the last second is spent
  // polling.
  constexpr std::chrono::milliseconds kLastSecond{1000};
  constexpr std::chrono::milliseconds kPeriod{5};
  const Deadline deadline(timeout);
  try {
    if (timeout > kLastSecond) wait_at_most(*store_, key, timeout - kLastSecond);
    for (;;) {
      if (store_->check({key})) return store_->get(key);
      if (deadline.passed()) break;
      std::this_thread::sleep_for(std::min(deadline.remaining(), kPeriod));
    }
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kSystem, "the store failed while waiting for '", key,
                "': ", words_of(error));
  }
  throw Error(ErrorCode::kTimeout, "the key '", key, "' did not appear in the store within ",
              timeout.count(), " ms");
}

}  // namespace symm
