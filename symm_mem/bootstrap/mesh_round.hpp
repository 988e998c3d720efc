// The exchanges that one collective call makes over a mesh, under one number and one deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

struct MeshRound {
  BootstrapMesh& mesh;
  FramePosition position;
  Deadline deadline;
  const std::function<bool()>& give_up;

  int rank() const { return mesh.rank(); }
  int world_size() const { return mesh.world_size(); }
  // As BootstrapMesh::exchange().
  std::vector<BootstrapMesh::Received> exchange(std::span<const std::uint8_t> message,
                                                int descriptor = -1) const {
    return mesh.exchange(position, message, descriptor, deadline.remaining(), give_up);
  }
  // As BootstrapMesh::post(), once a round.
  void post(std::span<const std::uint8_t> message, int descriptor) const {
    mesh.post(position, message, descriptor, deadline.remaining(), give_up);
  }
  // What every other rank has posted in this round, by rank. Takes all of it, and then throws the
  // first error of BootstrapMesh::take().
  std::vector<BootstrapMesh::Received> take_all() const;
};

// Runs `step`; its error is returned instead of thrown, so that it can be sent to the other ranks.
template <typename Step>
std::optional<Error> try_step(Step&& step) {
  try {
    std::forward<Step>(step)();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

inline std::vector<BootstrapMesh::Received> MeshRound::take_all() const {
  std::vector<BootstrapMesh::Received> received(static_cast<std::size_t>(world_size()));
  std::optional<Error> first;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    const std::optional<Error> error = try_step([&] {
      received[static_cast<std::size_t>(peer)] =
          mesh.take(peer, position, deadline.remaining(), give_up);
    });
    if (error && !first) first = error;
  }
  if (first) throw Error(*first);
  return received;
}

}  // namespace symm
