// Meshes whose ranks are threads of this process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/process_identity.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm::test {

inline constexpr std::chrono::milliseconds kMeshTimeout{20000};

// PeerRecord::published of a record that counts as of this try: the start of a process is known in
// whole clock ticks, and this one may be younger than that.
inline std::uint64_t published_now() {
  while (host_clock() <= start_time(own_process())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return static_cast<std::uint64_t>(host_clock().count());
}

inline BootstrapMeshConfig mesh_config(int rank, int world_size,
                                       std::chrono::milliseconds timeout = kMeshTimeout) {
  published_now();  // what ranks publish counts from the first try on
  BootstrapMeshConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world_size;
  config.timeout = timeout;
  return config;
}

inline std::vector<std::uint8_t> wait_for_key(KeyValueStore& store, const std::string& key) {
  const Deadline deadline(kMeshTimeout);
  for (;;) {
    if (auto value = store.get(key)) return std::move(*value);
    if (deadline.passed()) throw Error(ErrorCode::kTimeout, "no key ", key);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// By rank. Throws the first rank's error.
inline std::vector<std::unique_ptr<BootstrapMesh>> connect_all(int world_size) {
  MemoryStore store;
  std::vector<std::unique_ptr<BootstrapMesh>> meshes(static_cast<std::size_t>(world_size));
  run_ranks(world_size, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] =
        BootstrapMesh::connect(store, mesh_config(rank, world_size));
  });
  return meshes;
}

}  // namespace symm::test
