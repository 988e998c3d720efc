// The key-value store that a group bootstraps from, as this library needs it.
//
// The backend adapts c10d::Store to it; tests use an in-memory one. The store is not trusted: it
// has no authorisation, so whatever comes out of it is parsed as hostile input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace symm {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Publishes `value` under `key`. Local.
  virtual void set(const std::string& key, const std::vector<std::uint8_t>& value) = 0;

  // What `key` holds now, nullopt where it has never been set. Local, waits for nobody.
  virtual std::optional<std::vector<std::uint8_t>> get(const std::string& key) = 0;
};

}  // namespace symm
