// A c10d backend of GPUs, NCCL above all, as the link between hosts: it moves bytes on streams of
// its own and never combines.
//
// NOTE [Groups of the engine]
// Where every rank has a GPU of its own, one group of the engine has all ranks. NCCL takes no two
// ranks of one GPU into a group; where ranks of a host share one, there is a group for each two
// ranks of different hosts that exchange anything, made when they first do, in the order of pairs
// on every rank. send and recv have two groups for each two ranks and tag channel, one a direction,
// so that a message never waits for one in the other direction. Both are made when the two ranks
// first exchange a message; making them takes both ranks, so those of a batch are made in the order
// of pairs first. To end a group in good order takes both ranks as well, so that is the order of
// their ends too.
//
// NOTE [Failure of the engine]
// What an engine says of itself (c10d::Backend::getError) is asked by the group's watchdog, which
// fails the ranks of this host with it, and ends the engine's groups once the host has failed. Both
// let streams go on that wait for messages; what these have written is not to be used.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/engine/async_queue.hpp"
#include "backend/engine/legs/stream_link.hpp"
#include "backend/hosts/backend_link.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

// Thread safe, but for messages of collectives, which one thread at a time begins.
class GpuLink final : public StreamLink, private WatchdogTask {
 public:
  struct Config {
    std::string engine;
    c10::intrusive_ptr<c10d::Store> store;  // of the engine's groups
    int rank = 0;                           // group rank
    int world_size = 1;
    std::chrono::milliseconds timeout{0};
    c10::Device device = c10::Device(c10::kCUDA);
    std::string hosts;  // "a: ranks 0, 1; b: rank 2", for messages
    // Two bytes of the GPU, for messages that connect; they outlive this object.
    std::byte* scratch = nullptr;
  };
  // `group`: of this host's ranks. Local.
  GpuLink(Config config, std::shared_ptr<LocalGroup> group);
  ~GpuLink() override;
  GpuLink(const GpuLink&) = delete;
  GpuLink& operator=(const GpuLink&) = delete;

  // Connects one group of all ranks, each of which has a GPU of its own. Collective over them.
  // Throws Error.
  void connect_all();

  const std::string& name() const override { return config_.engine; }
  bool can_be_captured() const override { return true; }
  bool takes_any_memory() const override { return true; }
  void add_memory(std::span<std::byte>) override {}
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override;
  void abort() noexcept override;

  // Messages of a program. Those of one peer, direction and tag channel match in their order.
  struct Side {
    int peer;  // group rank
    int tag_channel;
    bool is_send;
  };
  // Makes what the messages of these sides need. Blocks until the peers do the same; nothing where
  // they have before. Throws Error; kUnsupported where that would be inside a capture.
  void connect_sides(std::vector<Side> sides, bool captured);
  // Puts a message, nothing where it is empty, on the calling thread's current stream, which then
  // waits for its end. Its side has been connected. Throws Error.
  void message(const Side& side, std::span<std::byte> bytes);

  // Ends the engine's groups in good order. Nothing may be under way.
  void shutdown() noexcept;

 private:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  // One of two ranks.
  struct Pair {
    BackendPtr backend;
    int peer;  // in it
  };

  // A side as both of its ranks name it. Their order is the order of pairs.
  struct Way {
    int low;  // the smaller of the two group ranks
    int high;
    int tag_channel;
    bool downwards;  // from the higher rank to the lower
    auto operator<=>(const Way&) const = default;
  };
  Way way_of(const Side& side) const;
  // Makes the group of `way` and sends its first byte.
  Pair connected(const Way& way);

  void look(bool at_connections) override;
  BackendPtr make(const std::string& name, int rank, int size);
  // The group for messages of collectives with `peer`, and the peer's rank there.
  Pair group_with(int peer);
  at::Tensor view_of(std::span<std::byte> bytes) const;
  // `messages` of one group, together.
  void begin(const BackendPtr& backend, std::span<const std::pair<HostMessage, bool>> messages,
             std::vector<WorkRef>& works);
  std::vector<BackendPtr> take_groups();
  [[noreturn]] void throw_ended() const;
  // What one of the engine's groups says is wrong, or "".
  std::string error_of_engine();

  const Config config_;
  const std::shared_ptr<LocalGroup> group_;
  const std::uint32_t fork_generation_ = fork_generation();
  std::atomic<bool> ended_{false};
  std::mutex connecting_;  // of who makes groups for messages; taken before mutex_
  std::mutex mutex_;       // guards what follows
  BackendPtr flat_;
  std::map<int, Pair> pairs_;  // by peer
  std::map<Way, Pair> ways_;
  AsyncQueue ender_{AsyncQueue::Callbacks::kRunNext};
};

}  // namespace symm
