// The link of a torch.distributed group, whatever the group's backend: made from its Store alone.
//
// NOTE [Links of groups]
// A link belongs to a ProcessGroup object, not to its name: a group that is destroyed and made
// again under the same name gets a new one. It is made by the group's first rendezvous. torch does
// not tell when a group of another backend is destroyed; its link is dropped when the next one is
// made, and its handles ask the registry of groups each time they are used. A backend of this
// library tells (SegmentUser), so that peers see its end at once.
//
// Thread safe. What is collective says so, blocks, and must be called without Python's interpreter
// lock.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "symm_mem/group/device_signals.hpp"
#include "symm_mem/group/peer_link.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

// The part of a backend whose collectives read symmetric memory in place. It learns of every
// segment that joins one of the backend's groups and of those that all ranks have freed.
class SegmentUser {
 public:
  // Links find it by the address of `backend`, which lives longer.
  explicit SegmentUser(const c10d::Backend& backend);
  virtual ~SegmentUser();
  SegmentUser(const SegmentUser&) = delete;
  SegmentUser& operator=(const SegmentUser&) = delete;

  // Collective, in the same order on every rank, with the same segment.
  virtual void segment_joined(std::shared_ptr<Segment> segment) = 0;
  // The same, once every rank has freed its memory of that segment.
  virtual void segment_left(const std::shared_ptr<Segment>& segment) = 0;
};

class GroupLink {
 public:
  GroupLink(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::string name,
            std::shared_ptr<PeerLink> peers);

  PeerLink& peers() const { return *peers_; }
  const std::string& name() const { return name_; }

  // Throws Error(kAborted) where the group has been destroyed or the link is broken. Local.
  void check_usable() const;
  bool belongs_to(const c10d::ProcessGroup* group) const;

  // Of operations that name no time-out: what the group's backend for `device` has. Local.
  std::chrono::milliseconds timeout(c10::DeviceType device) const;

  // The group's signals on a GPU of this rank, made by the first call. Local; cold at first.
  DeviceSignals& signals_on(c10::Device device);

  // Makes `segment` known to the group's backend for `device`, if it has a SegmentUser; first takes
  // from it what all ranks have freed since. Collective. `id` is the same on every rank.
  void join(c10::DeviceType device, std::uint64_t id, std::shared_ptr<Segment> segment);
  // This rank has freed its memory of the segment that joined as `id`. Local.
  void freed(std::uint64_t id);

 private:
  friend void close_links_of(const SegmentUser* user) noexcept;
  struct Joined {
    std::uint64_t id;
    std::shared_ptr<Segment> segment;
    SegmentUser* user;
    bool freed = false;
  };
  void let_go(std::chrono::milliseconds timeout);

  const std::string name_;
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> group_;
  const c10d::ProcessGroup* const identity_;
  const std::shared_ptr<PeerLink> peers_;
  std::mutex mutex_;  // guards what follows
  std::vector<Joined> joined_;
  std::map<c10::DeviceIndex, std::unique_ptr<DeviceSignals>> signals_;
};

// The link of the group of that name, made by the first call: collective then, else local. Throws
// what c10d throws for an unknown name, and Error as PeerLink::connect.
std::shared_ptr<GroupLink> link_of_group(const std::string& name);

// Breaks the links of groups that `user`, whose backend is about to go, has joined.
void close_links_of(const SegmentUser* user) noexcept;

}  // namespace symm
