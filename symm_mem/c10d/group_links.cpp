#include "symm_mem/c10d/group_links.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/gpu_access.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct Links {
  std::mutex mutex;
  std::vector<std::shared_ptr<GroupLink>> links;
  std::map<const c10d::Backend*, SegmentUser*> users;
  // Held by the one thread that makes the link of a group; other groups' are made meanwhile.
  std::map<const c10d::ProcessGroup*, std::mutex> connecting;
};

// Never destroyed: handles may outlive every static of the program.
Links& all_links() {
  static Links* const instance = new Links;
  return *instance;
}

// What is known of names (NOTE [Logical groups]).
struct Names {
  std::mutex mutex;
  std::set<std::string> of_c10d;
  std::map<std::string, GroupPtr> logical;
};

Names& all_names() {
  static Names* const instance = new Names;
  return *instance;
}

// Null where set_group_info() has not named it.
GroupPtr logical_group(const std::string& name) {
  try {
    const auto& info = c10d::symmetric_memory::get_group_info(name);
    return c10::make_intrusive<c10d::ProcessGroup>(info.store, info.rank, info.world_size);
  } catch (const c10::Error&) {
    return {};
  }
}

// Null where the group has no backend for that kind of device.
BackendPtr backend_for(c10d::ProcessGroup& group, c10::DeviceType device) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const auto same_type = [&](const c10::Device& one) { return one.type() == device; };
  if (std::none_of(devices.begin(), devices.end(), same_type)) return {};
  return group.getBackend(device);
}

// Null where the group's backend for `device` has none.
SegmentUser* user_of(c10d::ProcessGroup& group, c10::DeviceType device) {
  const BackendPtr backend = backend_for(group, device);
  const std::lock_guard lock(all_links().mutex);
  const auto found = all_links().users.find(backend.get());
  return found == all_links().users.end() ? nullptr : found->second;
}

// Null where no backend of the group has options.
c10::intrusive_ptr<c10d::Backend::Options> options_of(c10d::ProcessGroup& group,
                                                      c10::DeviceType preferred) {
  const auto options_for = [&](c10::DeviceType type) -> c10::intrusive_ptr<c10d::Backend::Options> {
    try {
      if (const BackendPtr backend = backend_for(group, type)) return backend->getBackendOptions();
    } catch (const std::exception&) {  // a backend need not have options
    }
    return {};
  };
  if (auto options = options_for(preferred)) return options;
  for (const c10::Device& device : group.getDeviceTypes()) {
    if (auto options = options_for(device.type())) return options;
  }
  return {};
}

milliseconds timeout_of(c10d::ProcessGroup& group, c10::DeviceType device) {
  if (group.getDeviceTypes().empty()) return group.getStore()->getTimeout();  // a logical one
  const auto options = options_of(group, device);
  return options && options->timeout.count() > 0 ? options->timeout : kBackendDefaultTimeout;
}

// None for the default group, whose ranks are the global ones.
std::vector<std::int64_t> global_ranks_of(c10d::ProcessGroup& group) {
  const auto options = options_of(group, c10::DeviceType::CPU);
  if (!options) return {};
  return {options->global_ranks_in_group.begin(), options->global_ranks_in_group.end()};
}

bool is_registered(const GroupLink& link) {
  if (link.is_logical()) return true;
  try {
    return link.belongs_to(c10d::resolve_process_group(link.name()).get());
  } catch (const c10::Error&) {  // no group of that name
    return false;
  }
}

std::shared_ptr<GroupLink> find_link(const c10d::ProcessGroup* group) {
  const std::lock_guard lock(all_links().mutex);
  for (const std::shared_ptr<GroupLink>& link : all_links().links) {
    if (link->belongs_to(group)) return link;
  }
  return nullptr;
}

std::shared_ptr<LocalGroup> local_group_of(const GroupPtr& group, const std::string& name) {
  for (const c10::Device& device : group->getDeviceTypes()) {
    if (SegmentUser* const user = user_of(*group, device.type())) return user->local_group();
  }
  C10dStore store(c10::make_intrusive<c10d::PrefixStore>("symm_mem", group->getStore()));
  return LocalGroup::connect(store, {.group_name = name,
                                     .rank = group->getRank(),
                                     .world_size = group->getSize(),
                                     .global_ranks = global_ranks_of(*group),
                                     .timeout = timeout_of(*group, c10::DeviceType::CPU),
                                     .payload = {}});
}

}  // namespace

SegmentUser::SegmentUser(const c10d::Backend& backend) {
  const std::lock_guard lock(all_links().mutex);
  all_links().users.emplace(&backend, this);
}

SegmentUser::~SegmentUser() {
  const std::lock_guard lock(all_links().mutex);
  std::erase_if(all_links().users, [this](const auto& one) { return one.second == this; });
}

GroupLink::GroupLink(const GroupPtr& group, std::string name, std::shared_ptr<LocalGroup> peers)
    : name_(std::move(name)),
      group_(group),
      identity_(group.get()),
      logical_(group->getDeviceTypes().empty()),
      peers_(std::move(peers)) {}

bool GroupLink::belongs_to(const c10d::ProcessGroup* group) const {
  return identity_ == group && !group_.expired();
}

void GroupLink::check_usable() const {
  if (!is_registered(*this)) {
    throw Error(ErrorCode::kAborted, peers_->memory_prefix(),
                "the group has been destroyed; its handles cannot be used");
  }
  peers_->check_usable();
}

milliseconds GroupLink::timeout(c10::DeviceType device) const {
  const GroupPtr group = group_.lock();
  return group ? timeout_of(*group, device) : kBackendDefaultTimeout;
}

DeviceSignals& GroupLink::signals_on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<DeviceSignals>& signals = signals_[device.index()];
  if (!signals) signals = std::make_unique<DeviceSignals>(gpu_runtime(device), *peers_);
  return *signals;
}

SegmentUser* GroupLink::user(c10::DeviceType device) const {
  const GroupPtr group = group_.lock();
  return group ? user_of(*group, device) : nullptr;
}

void GroupLink::join(SegmentUser* user, std::uint64_t id, std::shared_ptr<Segment> segment,
                     bool symmetric) {
  if (user == nullptr) return;
  user->add_segment(segment, symmetric);
  const std::lock_guard lock(mutex_);
  freed_.join(id);
  joined_.push_back({id, std::move(segment), user});
}

FreedSegments::Ids GroupLink::freed_here() const {
  const std::lock_guard lock(mutex_);
  return freed_.posted();
}

void GroupLink::freed(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  freed_.free(id);
}

void GroupLink::let_go(std::span<const std::span<const std::uint64_t>> lists) {
  std::vector<Joined> gone;
  {
    const std::lock_guard lock(mutex_);
    const FreedSegments::Ids everywhere = freed_.take(lists);
    std::erase_if(joined_, [&](Joined& one) {
      if (!std::ranges::binary_search(everywhere, one.id)) return false;
      gone.push_back(std::move(one));
      return true;
    });
  }
  for (const Joined& one : gone) one.user->remove_segment(one.segment);
}

GroupPtr group_by_name(const std::string& name) {
  Names& names = all_names();
  const std::lock_guard lock(names.mutex);
  try {
    GroupPtr group = c10d::resolve_process_group(name);
    if (!names.of_c10d.contains(name)) names.of_c10d.insert(name);
    return group;
  } catch (const c10::Error&) {
    if (names.of_c10d.contains(name)) throw;
    GroupPtr& group = names.logical[name];
    if (!group) group = logical_group(name);
    if (!group) throw;
    return group;
  }
}

std::shared_ptr<GroupLink> link_of_group(const std::string& name) {
  const GroupPtr group = group_by_name(name);
  if (auto found = find_link(group.get())) return found;
  std::unique_lock all(all_links().mutex);
  std::mutex& connecting = all_links().connecting[group.get()];
  all.unlock();
  const std::lock_guard lock(connecting);
  if (auto found = find_link(group.get())) return found;
  drop_links_of_destroyed_groups();
  auto link = std::make_shared<GroupLink>(group, name, local_group_of(group, name));
  all.lock();
  all_links().links.push_back(link);
  return link;
}

void drop_links_of_destroyed_groups() {
  std::vector<std::shared_ptr<GroupLink>> gone;
  {
    const std::lock_guard lock(all_links().mutex);
    std::erase_if(all_links().links, [&](std::shared_ptr<GroupLink>& link) {
      if (is_registered(*link)) return false;
      gone.push_back(std::move(link));
      return true;
    });
  }
  for (const std::shared_ptr<GroupLink>& link : gone) {
    LocalGroup& peers = link->peers();
    if (!peers.failed()) peers.pending_work().finish();
    peers.leave();
  }
}

void forget_segment_user(const SegmentUser* user) noexcept {
  Links& links = all_links();
  const std::lock_guard lock(links.mutex);
  for (const std::shared_ptr<GroupLink>& link : links.links) {
    const std::lock_guard joined(link->mutex_);
    std::erase_if(link->joined_, [&](const GroupLink::Joined& one) {
      if (one.user != user) return false;
      link->freed_.forget(one.id);
      return true;
    });
  }
}

}  // namespace symm
