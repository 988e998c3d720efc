// What a torch.distributed group, whatever its backend, has for symmetric memory.
//
// NOTE [Links of groups]
// A link belongs to a ProcessGroup object, not to its name: a group that is destroyed and made
// again under the same name gets a new one. The group's first rendezvous makes it: with a backend
// of this library over the LocalGroup of its collectives, else over one that is connected through
// the group's Store. torch does not report that a group of another backend is destroyed: its link
// is dropped when the next link or group of this library is made, and its handles check the
// registry of groups each time they are used. A backend of this library leaves its LocalGroup, so
// peers see its end at once.
//
// NOTE [Logical groups]
// torch's set_group_info() names ranks and a Store that need not be a group of c10d. Such a group
// has no backend and is never destroyed; its time-out is its Store's. torch's own functions call it
// for groups of c10d as well and never take it back, so a name that c10d has had here stays c10d's:
// of a destroyed group it must not lead to a Store without peers.
//
// Thread safe. What is collective says so, blocks, and must be called without Python's interpreter
// lock.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "symm_mem/group/device_signals.hpp"
#include "symm_mem/group/freed_segments.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/group/signal_pad_pool.hpp"
#include "symm_mem/segment/segment.hpp"
#include "symm_mem/segment/table_rows.hpp"

namespace symm {

// The part of a backend whose collectives read symmetric memory in place. It learns of every
// segment that joins one of the backend's groups and of those that all ranks have freed. All
// members are local; every rank calls them in the same order.
class SegmentUser {
 public:
  // Links find it by the address of `backend`, which lives longer.
  explicit SegmentUser(const c10d::Backend& backend);
  virtual ~SegmentUser();
  SegmentUser(const SegmentUser&) = delete;
  SegmentUser& operator=(const SegmentUser&) = delete;

  // The local group of the collectives, which the group's symmetric memory uses too.
  virtual std::shared_ptr<LocalGroup> local_group() = 0;
  // Of the segments that were added: NOTE [Rows of segments] in table_rows.hpp.
  virtual TableRows free_rows() = 0;
  // Makes ready for that segment, which all ranks may add. Throws Error where it cannot be used;
  // then no rank adds it.
  virtual void prepare_segment(const Segment& segment) = 0;
  // `symmetric`: registered for symmetric use (Communicator::add_segment).
  virtual void add_segment(const std::shared_ptr<Segment>& segment, bool symmetric) = 0;
  // The same for a segment that was added before.
  virtual void set_symmetric(const std::shared_ptr<Segment>& segment) = 0;
  // Once every rank has freed its memory of that segment.
  virtual void remove_segment(const std::shared_ptr<Segment>& segment) = 0;
};

class GroupLink {
 public:
  GroupLink(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::string name,
            std::shared_ptr<LocalGroup> peers);

  LocalGroup& peers() const { return *peers_; }
  const std::string& name() const { return name_; }

  // Throws Error(kAborted) where the group has been destroyed or has failed. Local.
  void check_usable() const;
  bool belongs_to(const c10d::ProcessGroup* group) const;
  const c10d::ProcessGroup* group() const { return identity_; }  // may be gone
  bool is_logical() const { return logical_; }                   // NOTE [Logical groups]

  // Of operations that name no time-out: what the group's backend for `device` has. Local.
  std::chrono::milliseconds timeout(c10::DeviceType device) const;

  // The group's signals on a GPU of this rank, made by the first call. Local; cold at first.
  DeviceSignals& signals_on(c10::Device device);

  // The signal pads of the group's symmetric memory; for who holds peers().hold().
  SignalPadPool& signal_pads() { return signal_pads_; }

  // The group's backend for `device` where it reads symmetric memory in place, else null. Local.
  SegmentUser* user(c10::DeviceType device) const;
  // What this rank posts of segments that have joined; NOTE [Freed segments].
  FreedSegments::Ids freed_here() const;
  // `lists`: what the ranks have posted. Takes what all have freed from the backend. Local.
  void let_go(std::span<const std::span<const std::uint64_t>> lists);
  // Makes `segment` known to `user`, null for nobody. Local, the same on every rank; `id` too.
  void join(SegmentUser* user, std::uint64_t id, std::shared_ptr<Segment> segment, bool symmetric);
  // This rank has freed its memory of the segment that joined as `id`. Local.
  void freed(std::uint64_t id);

 private:
  friend void forget_segment_user(const SegmentUser* user) noexcept;
  struct Joined {
    std::uint64_t id;
    std::shared_ptr<Segment> segment;
    SegmentUser* user;
  };

  const std::string name_;
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> group_;
  const c10d::ProcessGroup* const identity_;
  const bool logical_;
  const std::shared_ptr<LocalGroup> peers_;
  SignalPadPool signal_pads_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Joined> joined_;
  FreedSegments freed_;
  std::map<c10::DeviceIndex, std::unique_ptr<DeviceSignals>> signals_;
};

// The group of that name: c10d's, else a logical one. Throws what c10d throws for an unknown name.
// Local.
c10::intrusive_ptr<c10d::ProcessGroup> group_by_name(const std::string& name);

// The link of the group of that name, made by the first call: collective then, else local. Throws
// what c10d throws for an unknown name, and Error as LocalGroup::connect.
std::shared_ptr<GroupLink> link_of_group(const std::string& name);

// Leaves the local groups of links whose group torch has destroyed. Local.
void drop_links_of_destroyed_groups();

// Forgets `user`, which is about to go.
void forget_segment_user(const SegmentUser* user) noexcept;

}  // namespace symm
