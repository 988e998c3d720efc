// A Store in a directory, for ranks that are processes. One file a key, put in place by rename.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/process/deadline.hpp"

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

  std::vector<std::uint8_t> get(const std::string& key,
                                std::chrono::milliseconds timeout) override {
    const Deadline deadline(timeout);
    for (;;) {
      std::ifstream file(path_of(key), std::ios::binary);
      if (file) return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      if (deadline.passed()) throw Error(ErrorCode::kTimeout, "no key " + key);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::string path_of(std::string key) const {
    for (char& c : key) c = c == '/' ? '.' : c;
    return directory_ + "/" + key;
  }

  std::string directory_;
};

}  // namespace symm::test
