// The exchanges that one collective call makes over a mesh, under one number and one deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

struct MeshRound {
  PeerMesh& mesh;
  std::uint64_t sequence;
  Deadline deadline;
  const std::function<bool()>& give_up;

  int rank() const { return mesh.rank(); }
  int world_size() const { return mesh.world_size(); }
  // As PeerMesh::exchange().
  std::vector<PeerMesh::Received> exchange(std::span<const std::uint8_t> message,
                                           int descriptor = -1) const {
    return mesh.exchange(sequence, message, descriptor, deadline.remaining(), give_up);
  }
};

// Runs `step`; its error is remembered instead of thrown, so that the other ranks can be told.
template <typename Step>
std::optional<Error> try_step(Step&& step) {
  try {
    std::forward<Step>(step)();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace symm
