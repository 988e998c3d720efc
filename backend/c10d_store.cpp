#include "backend/c10d_store.hpp"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {
  if (!store_) throw Error(ErrorCode::kInvalidArgument, "store: expected a Store, got None");
}

void C10dStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  try {
    store_->set(key, value);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kSystem, "the store refused to set '" + key + "': " + words_of(error));
  }
}

std::vector<std::uint8_t> C10dStore::get(const std::string& key,
                                         std::chrono::milliseconds timeout) {
  // The kinds of store report a time-out by different exception types, so the clock decides. A
  // store may give up a little early by its own clock.
  constexpr std::chrono::milliseconds kClockSlack{10};
  const auto started = std::chrono::steady_clock::now();
  try {
    store_->wait({key}, timeout);
    return store_->get(key);
  } catch (const std::exception& error) {
    const auto elapsed = std::chrono::steady_clock::now() - started;
    if (elapsed + kClockSlack >= timeout) {
      throw Error(ErrorCode::kTimeout, "the key '" + key + "' did not appear in the store within " +
                                           std::to_string(timeout.count()) + " ms");
    }
    throw Error(ErrorCode::kSystem,
                "the store failed while waiting for '" + key + "': " + words_of(error));
  }
}

}  // namespace symm
