#include "symm_mem/c10d/c10d_store.hpp"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/file_store_hold.hpp"

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
    throw Error(ErrorCode::kSystem, "the store refused to set '", key, "': ", words_of(error));
  }
}

std::optional<std::vector<std::uint8_t>> C10dStore::get(const std::string& key) {
  const FileStoreHold hold(*store_);
  try {
    if (!store_->check({key})) return std::nullopt;
    return store_->get(key);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kSystem, "the store failed to look for '", key, "': ", words_of(error));
  }
}

}  // namespace symm
