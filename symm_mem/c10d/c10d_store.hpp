// c10d's Store as the key-value store that a group bootstraps from.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/store.hpp"

namespace symm {

// Keys go to the store as they are: c10d hands every group a store with a prefix of its own. A
// store that is written in Python takes the interpreter's lock by itself, so the caller must not
// hold it. As thread safe as the store.
class C10dStore final : public KeyValueStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);

  // Throws Error(kSystem) with the store's own words.
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  // The same, also for a torn file (NOTE [Torn files] in file_store_hold.hpp). No key is ever
  // deleted, so that a store whose get() waits has nothing to wait for.
  std::optional<std::vector<std::uint8_t>> get(const std::string& key) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace symm
