// What a group over several hosts has for CUDA tensors, made when a rank first uses its GPU.
//
// NOTE [Engine of GPUs]
// With "auto" NCCL carries what crosses hosts, unless a rank cannot use it or two ranks of
// different hosts are on one GPU; then the CPU's engine does, through the CPU's memory. Each rank
// publishes what there is to know about its GPU when it first uses it. A collective needs that of
// all ranks, a message that of its two, and both follow the same rule.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/hosts/engine_choice.hpp"
#include "backend/engine/hosts/host_collectives.hpp"
#include "backend/engine/legs/stream_space.hpp"
#include "backend/hosts/gpu_link.hpp"
#include "backend/hosts/staged_link.hpp"
#include "backend/streams/device_streams.hpp"
#include "symm_mem/c10d/c10d_store.hpp"

namespace symm {

// Where ranks of a group write of calls on the "cpu" or the "gpu" that are late (NOTE [Late calls]
// in call_watch.hpp).
std::shared_ptr<C10dStore> store_of_late_calls(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::string& device);

class GpuHosts {
 public:
  // References outlive this object.
  struct Config {
    const std::string& group_name;
    const HostLayout& layout;
    const RankNames& names;
    Communicator& local;  // the ranks of this host
    BackendLink& cpu_link;
    c10::intrusive_ptr<c10d::Store> store;
    int rank = 0;      // group rank
    std::string wish;  // the engine for CUDA tensors or "auto"
    std::chrono::milliseconds timeout{0};
  };
  // Local. Throws Error(kSystem) with the store's words.
  GpuHosts(const Config& config, DeviceGroup& local, std::shared_ptr<DeviceStreams> streams);
  ~GpuHosts();

  // Agrees on the engine and connects it, once. Collective over the group; blocks. Throws Error.
  void connect();
  // Whether that has been done.
  bool is_connected() const { return collectives_ != nullptr; }

  // A collective on the calling thread's current stream, which is that of `to`. Blocks where the
  // engine's messages are staged. Throws Error.
  void run(const CollectiveArgs& args, const DeviceLaunch& to);

  // Whether messages with that rank of another host are staged. The first call with it waits until
  // that rank has used its GPU; kUnsupported inside a capture.
  bool stages(int peer, bool captured);
  // Where they are not: what GpuLink has for them, of the calling thread's current stream. Both
  // throw Error.
  void connect_sides(const std::vector<GpuLink::Side>& sides, bool captured);
  void message(const GpuLink::Side& side, std::span<std::byte> bytes);

  // What carries CUDA tensors between hosts: "nccl", or "gloo through the CPU's memory"; nullopt
  // before connect().
  std::optional<std::string> engine_text() const;

  // In good order, with nothing under way.
  void shutdown() noexcept;
  void abort() noexcept;

 private:
  // Waits until those ranks have said what there is to know.
  std::vector<GpuFacts> facts_of(const std::vector<int>& ranks);
  // Made by the first call.
  GpuLink& gpu_link();

  const Config config_;
  DeviceGroup& local_;
  const std::shared_ptr<DeviceStreams> streams_;
  mutable std::mutex mutex_;                   // guards what follows
  std::vector<std::optional<GpuFacts>> said_;  // by rank
  std::vector<std::optional<bool>> stages_;    // by rank
  std::shared_ptr<Mapping> scratch_;           // of gpu_link_
  std::unique_ptr<GpuLink> gpu_link_;
  std::atomic<GpuLink*> made_link_{nullptr};  // the same, once it is made
  std::optional<GpuEngine> engine_;           // of collectives
  // Made by connect() and used by one call at a time.
  std::unique_ptr<StagedLink> staged_link_;
  std::unique_ptr<StreamSpace> space_;
  std::unique_ptr<HostCollectives> collectives_;
};

}  // namespace symm
