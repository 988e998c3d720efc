// A Store in a directory, for ranks that are processes. One file a key, put in place by rename.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/store.hpp"

namespace symm::test {

class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    const std::string path = path_of(key);
    const std::string draft = path + ".draft." + std::to_string(::getpid());
    std::ofstream(draft, std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()),
               static_cast<std::streamsize>(value.size()));
    if (std::rename(draft.c_str(), path.c_str()) != 0) {
      throw Error(ErrorCode::kSystem, "cannot publish " + key);
    }
  }

  std::optional<std::vector<std::uint8_t>> get(const std::string& key) override {
    std::ifstream file(path_of(key), std::ios::binary);
    if (!file) return std::nullopt;
    return std::vector<std::uint8_t>{std::istreambuf_iterator<char>(file),
                                     std::istreambuf_iterator<char>()};
  }

 private:
  std::string path_of(std::string key) const {
    for (char& c : key) c = c == '/' ? '.' : c;
    return directory_ + "/" + key;
  }

  std::string directory_;
};

}  // namespace symm::test
