// One round in which every rank of a mesh sends every other one frame.
//
// NOTE [Goodbye]
// A rank whose set-up or round fails sends its peers the reason before it closes its sockets, so
// that they name the cause and not just the rank that left. An ordinary round of set-up carries
// {1}; a goodbye has the same sequence and carries {0, error code, rank, text}: the rank on which
// the failure arose and what it said. Who gives up because of a goodbye passes both on. A rank that
// gives up in the first round behind set-up (BootstrapMesh::leave) says goodbye in the same way:
// the kernel closes the sockets of a dead process one by one, so that a peer may see a survivor
// leave before it sees the death.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/frame_queues.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

// The sequence number of the round that ends connect(); callers' numbers lie below it.
inline constexpr std::uint64_t kSetupSequence = ~std::uint64_t{0};

// How error messages begin: "group 'x', rank 1 (global rank 5): ".
std::string mesh_prefix(const std::string& group_name, const RankNames& names, int rank);

// How long a wait sleeps at most before it looks again: whether to give up, and whether another
// thread has read what it waits for.
inline constexpr std::chrono::milliseconds kMeshPollPeriod{5};

// True when `error` has left the sockets with frames of an unfinished round on them.
bool breaks_mesh(ErrorCode code);

struct ExchangeRound {
  const std::string& prefix;  // of error messages
  const RankNames& names;
  std::span<const GuardedDescriptor> sockets;  // by rank; invalid for this one
  int rank = 0;
  FramePosition sequence = 0;
  std::span<const std::uint8_t> message;
  int descriptor = -1;
};

// Sends and receives at once over all sockets, so that no order of ranks can deadlock. Errors as
// BootstrapMesh::exchange. What is wrong with one frame (malformed, out of sequence, no room for
// its descriptor) is thrown after the whole round, which leaves the sockets usable.
std::vector<BootstrapMesh::Received> run_exchange(const ExchangeRound& round, FrameQueues& queues,
                                                  const Deadline& deadline,
                                                  const std::function<bool()>& give_up);

// Sends over every valid socket that the set-up of `rank`, this one, failed, without `prefix`. Does
// not block or throw.
void say_goodbye(const std::string& prefix, int rank, std::span<const GuardedDescriptor> sockets,
                 const Error& error) noexcept;

// If `message` is a goodbye of `peer` throws what it says.
void throw_if_goodbye(const std::string& prefix, const RankNames& names, int peer,
                      std::span<const std::uint8_t> message);

}  // namespace symm
