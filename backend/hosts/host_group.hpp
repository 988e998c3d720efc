// What a group over several hosts has beside the communicator of its host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <symm/ProcessGroupSymmOptions.hpp>
#include <vector>

#include "backend/engine/group_engine.hpp"
#include "backend/engine/hosts/host_collectives.hpp"
#include "backend/engine/legs/cpu_space.hpp"
#include "backend/hosts/backend_link.hpp"
#include "backend/hosts/gpu_hosts.hpp"

namespace symm {

class HostGroup {
 public:
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;
  // `config`: of the whole group. Collective over the group: agrees on the engine, connects this
  // host's ranks, then the hosts. Throws Error on every rank where the ranks disagree, the engine
  // cannot be used or `wanted` is "none"; the message names ranks and hosts.
  HostGroup(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorConfig& config,
            const std::string& wanted, const SpansHosts& found);

  const HostLayout& layout() const { return layout_; }
  // The ranks of this host.
  const std::shared_ptr<GroupEngine>& engine() const { return engine_; }
  HostCollectives& collectives() { return *collectives_; }
  // The half for CUDA tensors, made by the first call, which is local; `local` is that of
  // engine()'s communicator, `streams` those of the group on its GPU.
  GpuHosts& gpu(DeviceGroup& local, const std::shared_ptr<DeviceStreams>& streams);
  // Null until it was made.
  GpuHosts* gpu_if_made() const { return made_gpu_.load(std::memory_order_acquire); }
  const std::string& engine_name() const { return link_->name(); }
  // "2 hosts (a: ranks 0, 1; b: rank 2), symm inside each and gloo between them"
  std::string description() const;
  bool is_here(int rank) const {
    return layout_.host_of[index(rank)] == layout_.host_of[index(rank_)];
  }
  // As messages name ranks of the group.
  std::string rank_name(int rank) const { return names_.name(rank); }
  int local_of(int rank) const { return layout_.local_of[index(rank)]; }

  // A message to or from a rank of another host.
  c10::intrusive_ptr<c10d::Work> transfer(const at::Tensor& tensor, int peer, int tag,
                                          bool is_send);
  // The same of a tensor on the GPU, through memory of the CPU: a send waits for the current
  // stream, what was received is copied by wait() of the Work on the stream that is current there.
  c10::intrusive_ptr<c10d::Work> staged_transfer(const at::Tensor& tensor, int peer, int tag,
                                                 bool is_send,
                                                 const std::shared_ptr<DeviceStreams>& streams);

 private:
  // What CUDA tensors of a message between hosts, staged, become.
  c10::intrusive_ptr<c10d::Work> message(const at::Tensor& tensor, int peer, int tag, bool is_send,
                                         const at::Tensor& received_to);
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const int rank_;
  const RankNames names_;
  const HostLayout layout_;
  std::shared_ptr<GroupEngine> engine_;
  const std::string group_name_;
  const std::chrono::milliseconds timeout_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::string gpu_wish_;  // the engine for CUDA tensors or "auto"
  std::shared_ptr<BackendLink> link_;
  std::unique_ptr<CpuSpace> space_;
  std::unique_ptr<HostCollectives> collectives_;
  // What ends the group from other threads finds the GPU's half here.
  struct GpuSlot {
    std::mutex mutex;  // guards what follows
    std::shared_ptr<GpuHosts> gpu;
  };
  const std::shared_ptr<GpuSlot> gpu_slot_ = std::make_shared<GpuSlot>();
  std::atomic<GpuHosts*> made_gpu_{nullptr};
};

}  // namespace symm
