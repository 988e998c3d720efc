// What a group over several hosts has beside the communicator of its host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <symm/ProcessGroupSymmOptions.hpp>
#include <vector>

#include "backend/engine/group_engine.hpp"
#include "backend/engine/hosts/host_collectives.hpp"
#include "backend/hosts/backend_link.hpp"

namespace symm {

class HostGroup {
 public:
  // `config`: of the whole group. Collective over the group: agrees on the engine, connects this
  // host's ranks, then the hosts. Throws Error on every rank where the ranks disagree, the engine
  // cannot be used or `wanted` is "none"; the message names ranks and hosts.
  HostGroup(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorConfig& config,
            const std::string& wanted, const SpansHosts& found);

  const HostLayout& layout() const { return layout_; }
  // The ranks of this host.
  const std::shared_ptr<GroupEngine>& engine() const { return engine_; }
  HostCollectives& collectives() { return *collectives_; }
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

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const int rank_;
  const RankNames names_;
  const HostLayout layout_;
  std::shared_ptr<GroupEngine> engine_;
  std::shared_ptr<BackendLink> link_;
  std::unique_ptr<HostCollectives> collectives_;
};

}  // namespace symm
