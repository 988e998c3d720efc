#include "symm_mem/c10d/group_links.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <set>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Ids of freed segments that one message can name: 8 bytes each, in at most 4 KiB.
constexpr std::size_t kMaxFreedIds = 400;

struct Links {
  std::mutex mutex;
  std::vector<std::shared_ptr<GroupLink>> links;
  std::map<const c10d::Backend*, SegmentUser*> users;
  std::set<const c10d::ProcessGroup*> connecting;
  std::condition_variable connected;
};

// Never destroyed: handles may outlive every static of the program.
Links& all_links() {
  static Links* const instance = new Links;
  return *instance;
}

// One thread at a time makes the link of a group; links of several groups are made side by side.
class Connecting {
 public:
  explicit Connecting(const c10d::ProcessGroup* group) : group_(group) {
    Links& links = all_links();
    std::unique_lock lock(links.mutex);
    links.connected.wait(lock, [&] { return links.connecting.insert(group).second; });
  }
  ~Connecting() {
    Links& links = all_links();
    {
      const std::lock_guard lock(links.mutex);
      links.connecting.erase(group_);
    }
    links.connected.notify_all();
  }
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

 private:
  const c10d::ProcessGroup* group_;
};

// Null where the group has no backend for that kind of device.
BackendPtr backend_for(c10d::ProcessGroup& group, c10::DeviceType device) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const auto same_type = [&](const c10::Device& one) { return one.type() == device; };
  if (std::none_of(devices.begin(), devices.end(), same_type)) return {};
  return group.getBackend(device);
}

// Null where the backend has none.
SegmentUser* segment_user_of(const BackendPtr& backend) {
  const std::lock_guard lock(all_links().mutex);
  const auto found = all_links().users.find(backend.get());
  return found == all_links().users.end() ? nullptr : found->second;
}

// Null where no backend of the group tells its options.
c10::intrusive_ptr<c10d::Backend::Options> options_of(c10d::ProcessGroup& group,
                                                      c10::DeviceType preferred) {
  std::vector<c10::DeviceType> types = {preferred};
  for (const c10::Device& device : group.getDeviceTypes()) types.push_back(device.type());
  for (const c10::DeviceType type : types) {
    try {
      if (const BackendPtr backend = backend_for(group, type)) {
        if (auto options = backend->getBackendOptions()) return options;
      }
    } catch (const std::exception&) {  // a backend need not have options
    }
  }
  return {};
}

milliseconds timeout_of(c10d::ProcessGroup& group, c10::DeviceType device) {
  const auto options = options_of(group, device);
  return options && options->timeout.count() > 0 ? options->timeout : kBackendDefaultTimeout;
}

// The default group is given no list: its ranks are the global ones.
std::int64_t global_rank_of(c10d::ProcessGroup& group) {
  const auto options = options_of(group, c10::DeviceType::CPU);
  const auto rank = static_cast<std::size_t>(group.getRank());
  if (!options || rank >= options->global_ranks_in_group.size()) return group.getRank();
  return static_cast<std::int64_t>(options->global_ranks_in_group[rank]);
}

bool usable(const GroupLink& link) {
  try {
    link.check_usable();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Null where there is none, or where it has failed: then another one is to be made.
std::shared_ptr<GroupLink> find_link(const c10d::ProcessGroup* group) {
  std::shared_ptr<GroupLink> found;
  {
    const std::lock_guard lock(all_links().mutex);
    for (const std::shared_ptr<GroupLink>& link : all_links().links) {
      if (link->belongs_to(group)) found = link;
    }
  }
  return found && usable(*found) ? found : nullptr;
}

void drop_unusable_links() {
  std::vector<std::shared_ptr<GroupLink>> gone;  // let go of outside the lock
  const std::lock_guard lock(all_links().mutex);
  std::erase_if(all_links().links, [&](std::shared_ptr<GroupLink>& link) {
    if (usable(*link)) return false;
    link->peers().close("the group '" + link->name() + "' has been destroyed");
    gone.push_back(std::move(link));
    return true;
  });
}

std::shared_ptr<GroupLink> connect(const GroupPtr& group, const std::string& name) {
  C10dStore store(c10::make_intrusive<c10d::PrefixStore>("symm_mem", group->getStore()));
  const PeerLinkConfig config{.group_name = name,
                              .rank = group->getRank(),
                              .world_size = group->getSize(),
                              .global_rank = global_rank_of(*group),
                              .timeout = timeout_of(*group, c10::DeviceType::CPU)};
  return std::make_shared<GroupLink>(group, name, PeerLink::connect(store, config));
}

std::vector<std::uint64_t> parse_ids(std::span<const std::uint8_t> bytes, int rank) {
  ByteReader reader(bytes);
  std::vector<std::uint64_t> ids(
      std::min<std::size_t>(reader.integer<std::uint32_t>(), kMaxFreedIds));
  for (std::uint64_t& id : ids) id = reader.integer<std::uint64_t>();
  if (!reader.finished()) {
    throw Error(ErrorCode::kSecurity,
                "rank " + std::to_string(rank) + " sent a malformed list of freed memory");
  }
  return ids;
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

GroupLink::GroupLink(const GroupPtr& group, std::string name, std::shared_ptr<PeerLink> peers)
    : name_(std::move(name)), group_(group), identity_(group.get()), peers_(std::move(peers)) {}

bool GroupLink::belongs_to(const c10d::ProcessGroup* group) const {
  return identity_ == group && !group_.expired();
}

void GroupLink::check_usable() const {
  bool registered = false;
  try {
    registered = belongs_to(c10d::resolve_process_group(name_).get());
  } catch (const c10::Error&) {  // no group of that name
  }
  if (!registered) {
    throw Error(ErrorCode::kAborted,
                peers_->prefix() + "the group has been destroyed; its handles cannot be used");
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

void GroupLink::join(c10::DeviceType device, std::uint64_t id, std::shared_ptr<Segment> segment) {
  const GroupPtr group = group_.lock();
  const BackendPtr backend = group ? backend_for(*group, device) : BackendPtr();
  auto* const user = segment_user_of(backend);
  if (!user) return;
  let_go(timeout(device));
  user->segment_joined(segment);
  const std::lock_guard lock(mutex_);
  joined_.push_back({id, std::move(segment), user});
}

void GroupLink::freed(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (Joined& one : joined_) one.freed = one.freed || one.id == id;
}

// What one rank has freed may still be in use by another, so all must have.
void GroupLink::let_go(milliseconds timeout) {
  ByteWriter writer;
  std::vector<std::uint64_t> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const Joined& one : joined_) {
      if (one.freed && mine.size() < kMaxFreedIds) mine.push_back(one.id);
    }
  }
  writer.integer(static_cast<std::uint32_t>(mine.size()));
  for (const std::uint64_t id : mine) writer.integer(id);
  const std::vector<std::vector<std::uint8_t>> lists = peers_->tell(writer.take(), timeout);
  for (int rank = 0; rank < peers_->world_size(); ++rank) {
    const auto theirs = parse_ids(lists[static_cast<std::size_t>(rank)], rank);
    std::erase_if(mine, [&](std::uint64_t id) {
      return std::find(theirs.begin(), theirs.end(), id) == theirs.end();
    });
  }
  for (const std::uint64_t id : mine) {
    Joined gone;
    {
      const std::lock_guard lock(mutex_);
      const auto where = std::find_if(joined_.begin(), joined_.end(),
                                      [&](const Joined& one) { return one.id == id; });
      gone = std::move(*where);
      joined_.erase(where);
    }
    gone.user->segment_left(gone.segment);
  }
}

std::shared_ptr<GroupLink> link_of_group(const std::string& name) {
  const GroupPtr group = c10d::resolve_process_group(name);
  if (auto found = find_link(group.get())) return found;
  const Connecting connecting(group.get());
  if (auto found = find_link(group.get())) return found;
  drop_unusable_links();
  std::shared_ptr<GroupLink> link = connect(group, name);
  const std::lock_guard lock(all_links().mutex);
  all_links().links.push_back(link);
  return link;
}

void close_links_of(const SegmentUser* user) noexcept {
  Links& links = all_links();
  const std::lock_guard lock(links.mutex);
  for (const std::shared_ptr<GroupLink>& link : links.links) {
    const std::lock_guard joined(link->mutex_);
    for (GroupLink::Joined& one : link->joined_) {
      if (one.user != user) continue;
      link->peers().close("the group '" + link->name() + "' has been destroyed");
      break;
    }
    std::erase_if(link->joined_, [&](const GroupLink::Joined& one) { return one.user == user; });
  }
}

}  // namespace symm
