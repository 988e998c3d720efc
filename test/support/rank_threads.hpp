// Runs ranks as threads and collects what each of them threw.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm::test {

// Calls body(rank) for every rank in its own thread, joins all, and returns each rank's Error.
inline std::vector<std::optional<Error>> errors_of_ranks(int world_size,
                                                         const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)].emplace(error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The same for ranks that must all succeed: throws the first rank's error.
inline void run_ranks(int world_size, const std::function<void(int)>& body) {
  for (const std::optional<Error>& error : errors_of_ranks(world_size, body)) {
    if (error) throw *error;
  }
}

}  // namespace symm::test
