// Segments of host memory whose ranks are threads of this process, with contents that tell rank and
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "symm_mem/segment/segment.hpp"
#include "test/support/mesh_ranks.hpp"

namespace symm::test {

using Meshes = std::vector<std::unique_ptr<BootstrapMesh>>;
using Segments = std::vector<std::shared_ptr<Segment>>;

inline const std::size_t kPage = host_runtime().granularity();

// Word `index` of `rank`'s buffer: no two are the same.
inline std::uint64_t word_of(int rank, std::size_t index) {
  return 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(rank) * 1000003 + index + 1);
}

inline void fill(const Segment& segment) {
  auto* const words = reinterpret_cast<std::uint64_t*>(segment.base(segment.rank()));
  for (std::size_t i = 0; i < segment.bytes() / 8; ++i) words[i] = word_of(segment.rank(), i);
}

// How many words at `base` are not those of `rank`.
inline std::size_t wrong_words(const std::byte* base, std::size_t bytes, int rank) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, base + 8 * i, 8);
    wrong += word != word_of(rank, i);
  }
  return wrong;
}

inline Segments rendezvous_all(const Meshes& meshes,
                               const std::vector<std::shared_ptr<LocalSegment>>& local,
                               std::uint64_t sequence = 0) {
  Segments segments(meshes.size());
  run_ranks(static_cast<int>(meshes.size()), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] = Segment::rendezvous(*meshes[r], local[r], sequence, kMeshTimeout, nullptr);
  });
  return segments;
}

inline std::vector<std::shared_ptr<LocalSegment>> allocate_all(int world_size, std::size_t bytes) {
  std::vector<std::shared_ptr<LocalSegment>> local(static_cast<std::size_t>(world_size));
  for (auto& segment : local) segment = LocalSegment::allocate(host_runtime(), bytes);
  return local;
}

}  // namespace symm::test
