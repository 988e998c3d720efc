#include "symm_mem/c10d/allocation.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/symmetric_memory.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"

namespace symm {
namespace {

// Pads are read with 16-byte accesses by some kernels.
constexpr std::size_t kPadAlignment = 16;

std::shared_ptr<LocalSegment> allocate_segment(c10::Device device, std::size_t bytes) {
  std::shared_ptr<LocalSegment> segment = LocalSegment::allocate(device_runtime(device), bytes);
  if (device.is_cpu()) return segment;
  LocalSegment* const raw = segment.get();
  return std::shared_ptr<LocalSegment>(raw, [owned = DeviceOwned(device, std::move(segment))](
                                                LocalSegment*) mutable { owned.let_go(); });
}

SharedAllocation::Layout layout_of(std::size_t bytes) {
  const std::size_t pad_bytes = c10d::symmetric_memory::get_signal_pad_size();
  const std::size_t limit = std::size_t{1} << 62;
  if (bytes > limit || pad_bytes > limit) {
    throw Error(ErrorCode::kInvalidArgument, "alloc: expected a size below 2^62 bytes, got ", bytes,
                " and a signal pad of ", pad_bytes);
  }
  return {bytes, align_up(bytes, kPadAlignment), pad_bytes};
}

c10::Device usable_device(c10::Device device) {
  if (!device.is_cpu() && !device.has_index()) {
    device_runtime(c10::Device(device.type(), 0));  // says why there is no such device
  }
  return with_index(device);
}

// User buffers do not overlap each other. Those that are gone may overlap allocations.
struct Registry {
  using Map = std::map<std::uintptr_t, std::shared_ptr<Allocation>>;
  std::mutex mutex;
  Map by_base;
  Map user_buffers;  // by base
};

// Never destroyed: a tensor may outlive every static of the program.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::shared_ptr<Allocation> find_in(const Registry::Map& map, const void* pointer) {
  const auto after = map.upper_bound(address(pointer));
  if (after == map.begin()) return nullptr;
  const std::shared_ptr<Allocation>& found = std::prev(after)->second;
  return found->contains(pointer) ? found : nullptr;
}

void drop_user_buffers_that_are_gone() {
  std::vector<std::shared_ptr<Allocation>> all;  // asked and let go of outside the lock
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& [base, buffer] : registry().user_buffers) all.push_back(buffer);
  }
  std::erase_if(all, [](const auto& buffer) { return buffer->still_there(); });
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().user_buffers, [&](const auto& buffer) {
    return std::ranges::find(all, buffer.second) != all.end();
  });
}

// A rank's metadata of its allocation: words, followed by the ids of the segments that it has
// freed.
enum Word : std::size_t {
  kId,
  kBytes,
  kPadBytes,
  kDevice,
  kPadIsFree,
  kCaptured,
  kSymmetric,
  kWords
};
using Words = std::vector<std::uint64_t>;

// `all` is the same on every rank, so all ranks throw the same.
void check_same(const LocalGroup& peers, const std::vector<Words>& all, Word word,
                const char* what) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank][word] == all[0][word]) continue;
    throw Error(ErrorCode::kMismatch, peers.memory_prefix(), "rendezvous: expected the same ", what,
                " on every rank, got ", all[0][word], " on ", peers.rank_name(0), " and ",
                all[rank][word], " on ", peers.rank_name(static_cast<int>(rank)));
  }
}

bool all_have(const std::vector<Words>& all, Word word, std::uint64_t value) {
  return std::all_of(all.begin(), all.end(), [=](const Words& one) { return one[word] == value; });
}

// The ids that every rank has freed: a segment that a rank has not may be in use there.
std::vector<std::uint64_t> freed_everywhere(const std::vector<Words>& all) {
  std::vector<std::uint64_t> ids(all[0].begin() + kWords, all[0].end());
  for (const Words& one : all) {
    std::erase_if(ids, [&](std::uint64_t id) {
      return std::find(one.begin() + kWords, one.end(), id) == one.end();
    });
  }
  return ids;
}

}  // namespace

SharedAllocation::SharedAllocation(std::shared_ptr<GroupLink> link, c10::Device device,
                                   std::uint64_t id, const Layout& layout,
                                   std::shared_ptr<Segment> buffers, std::shared_ptr<Segment> pads)
    : link_(std::move(link)),
      device_(device),
      id_(id),
      layout_(layout),
      buffers_(std::move(buffers)),
      pads_(std::move(pads)),
      fork_generation_(fork_generation()) {
  const int world_size = buffers_->world_size();
  at::Tensor tables = at::empty({2, world_size}, at::kLong);
  for (int rank = 0; rank < world_size; ++rank) {
    std::byte* const pad = pads_->base(rank) + layout.pad_offset;
    buffer_pointers_.push_back(buffers_->base(rank));
    pads_by_rank_.push_back(pad);
    tables.mutable_data_ptr<std::int64_t>()[rank] =
        static_cast<std::int64_t>(address(buffers_->base(rank)));
    tables.mutable_data_ptr<std::int64_t>()[world_size + rank] =
        static_cast<std::int64_t>(address(pad));
  }
  const std::vector<int>& global_ranks = link_->peers().global_ranks();
  at::Tensor ranks = at::empty({world_size}, at::kInt);
  std::copy(global_ranks.begin(), global_ranks.end(), ranks.mutable_data_ptr<int>());
  tables_ = device.is_cpu() ? tables : tables.to(device);
  ranks_ = device.is_cpu() ? ranks : ranks.to(device);
  if (device.is_cpu()) {
    host_signals_.emplace(link_->peers(), signal_pads());
  } else {
    signals_ = &link_->signals_on(device);
    channel_order_ = std::make_shared<ChannelOrder>();
  }
}

SharedAllocation::~SharedAllocation() {
  auto held = std::make_shared<std::tuple<std::shared_ptr<Segment>, std::shared_ptr<Segment>,
                                          at::Tensor, at::Tensor, std::shared_ptr<ChannelOrder>>>(
      std::move(buffers_), std::move(pads_), std::move(tables_), std::move(ranks_),
      std::move(channel_order_));
  DeviceOwned(device_, std::move(held), fork_generation_).let_go();
}

void** SharedAllocation::buffer_table() const { return static_cast<void**>(tables_.data_ptr()); }

void** SharedAllocation::pad_table() const { return buffer_table() + buffers_->world_size(); }

int* SharedAllocation::global_rank_table() const { return static_cast<int*>(ranks_.data_ptr()); }

Allocation::Allocation(std::size_t bytes, c10::Device device, std::optional<std::string> group_name)
    : device_(usable_device(device)),
      group_name_(std::move(group_name)),
      layout_(layout_of(bytes)),
      segment_(allocate_segment(device_, layout_.pad_offset + layout_.pad_bytes)) {}

Allocation::Allocation(const c10::Storage& storage, ChunkedMemory memory)
    : device_(storage.device()),
      layout_(layout_of(storage.nbytes())),
      storage_(std::make_shared<RegisteredStorage>(storage)),
      segment_(LocalSegment::from_user_buffer(
          device_runtime(device_), static_cast<std::byte*>(storage.mutable_data()),
          storage.nbytes(), std::move(memory),
          [storage = storage_] { return storage->still_there(); })) {}

bool Allocation::is_backed_by(const ChunkedMemory& found) const {
  const ChunkedMemory& mine = segment_->chunks();
  return std::equal(mine.chunks.begin(), mine.chunks.end(), found.chunks.begin(),
                    found.chunks.end(), [this](const auto& one, const auto& other) {
                      return segment_->runtime().is_same(*one, *other);
                    });
}

Allocation::~Allocation() {
  for (const Membership& member : memberships_) {
    member.shared->link().freed(member.shared->id());
  }
}

bool Allocation::contains(const void* pointer) const {
  const std::uintptr_t start = address(base());
  return address(pointer) >= start && address(pointer) - start < std::max<std::size_t>(bytes(), 1);
}

bool Allocation::has_joined_a_group() const {
  const std::lock_guard lock(mutex_);
  return !memberships_.empty();
}

std::shared_ptr<SharedAllocation> Allocation::shared_with(const c10d::ProcessGroup* group) const {
  const std::lock_guard lock(mutex_);
  for (const Membership& member : memberships_) {
    if (member.shared->link().belongs_to(group)) return member.shared;
  }
  return nullptr;
}

bool Allocation::built_in_pad_is_free(const GroupLink& link) const {
  if (is_user_buffer()) return false;
  const std::lock_guard lock(mutex_);
  for (const Membership& member : memberships_) {
    if (member.shared->uses_built_in_pad() && &member.shared->link() != &link) return false;
  }
  return true;
}

void Allocation::forget_destroyed_groups() {
  std::vector<Membership> gone;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(memberships_, [&](Membership& member) {
    if (!try_step([&] { member.shared->link().check_usable(); })) return false;
    gone.push_back(std::move(member));
    return true;
  });
}

void Allocation::replace_membership(const std::shared_ptr<SharedAllocation>& before,
                                    const std::shared_ptr<SharedAllocation>& made) {
  Membership replaced;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(memberships_, [&](Membership& member) {
    if (member.shared != before) return false;
    replaced = std::move(member);
    before->link().freed(before->id());
    return true;
  });
  memberships_.push_back({made, {}});
}

std::shared_ptr<SharedAllocation> Allocation::share(const std::string& group_name, bool symmetric) {
  const std::shared_ptr<GroupLink> link = link_of_group(group_name);
  const std::chrono::milliseconds timeout = link->timeout(device_.type());
  LocalGroup& peers = link->peers();
  const auto order = peers.hold();
  forget_destroyed_groups();
  const std::shared_ptr<SharedAllocation> before = shared_with(link->group());
  const bool captured = !device_.is_cpu() && is_captured(device_);
  // Another thread may be capturing.
  std::optional<RelaxedCapture> relaxed;
  if (!device_.is_cpu()) relaxed.emplace(gpu_runtime(device_));
  if (!before && !captured) drop_user_buffers_that_are_gone();

  Words mine(kWords);
  mine[kId] = before ? before->id() : 0;
  mine[kBytes] = layout_.buffer_bytes;
  mine[kPadBytes] = layout_.pad_bytes;
  mine[kDevice] = static_cast<std::uint64_t>(device_.type());
  mine[kPadIsFree] = built_in_pad_is_free(*link);
  mine[kCaptured] = captured;
  mine[kSymmetric] = symmetric;
  const std::vector<std::uint64_t> freed = link->freed_here();
  mine.insert(mine.end(), freed.begin(), freed.end());

  std::shared_ptr<SharedAllocation> shared;
  const auto step = [&](const MeshRound& round) {
    std::optional<SegmentRendezvous> rendezvous;
    if (!before && !captured) rendezvous.emplace(round, segment_).post();
    const auto [number, all] =
        peers.exchange_words(LocalGroup::Purpose::kRendezvous, mine, kWords, round.deadline);
    check_same(peers, all, kSymmetric, "value of symmetric");
    if (before && all_have(all, kId, before->id())) {
      if (symmetric) {
        if (SegmentUser* const user = link->user(device_.type())) {
          user->set_symmetric(before->buffers());
        }
      }
      shared = before;
      return false;
    }
    if (!all_have(all, kCaptured, 0)) {
      throw Error(ErrorCode::kUnsupported, peers.memory_prefix(),
                  "rendezvous: memory cannot join a group while a graph is captured; call it once "
                  "before capture");
    }
    SegmentUser* const user = link->user(device_.type());
    check_same(peers, all, kDevice, "kind of device");
    check_same(peers, all, kBytes, "number of bytes");
    check_same(peers, all, kPadBytes, "size of signal pads");
    const bool built_in_pad = all_have(all, kPadIsFree, 1);
    if (built_in_pad) clear_built_in_pad();
    if (!rendezvous) rendezvous.emplace(round, segment_);
    std::shared_ptr<Segment> buffers = rendezvous->run([&] {
      if (user) user->prepare_segment(*segment_);
    });
    SharedAllocation::Layout layout = layout_;
    std::shared_ptr<Segment> pads = buffers;
    if (!built_in_pad) {
      layout.pad_offset = 0;
      pads = peers.share(allocate_segment(device_, layout.pad_bytes), round.deadline);
    }
    link->let_go(freed_everywhere(all));
    link->join(user, number, buffers, symmetric);
    shared = std::make_shared<SharedAllocation>(link, device_, number, layout, std::move(buffers),
                                                std::move(pads));
    return true;
  };
  peers.run_rendezvous(Deadline(timeout), std::ref(step));
  if (shared != before) replace_membership(before, shared);
  return shared;
}

// A group that ended in the middle of an operation leaves signals behind.
void Allocation::clear_built_in_pad() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(pad_was_used_, true)) return;
  }
  std::byte* const pad = base() + layout_.pad_offset;
  if (device_.is_cpu()) {
    std::memset(pad, 0, layout_.pad_bytes);
    return;
  }
  at::for_blob(pad, {static_cast<std::int64_t>(layout_.pad_bytes)})
      .options(at::TensorOptions().dtype(at::kByte).device(device_))
      .target_device(device_)
      .make_tensor()
      .zero_();
  wait_for_device(device_);
}

Allocation::Handle Allocation::handle(const std::shared_ptr<SharedAllocation>& shared,
                                      std::size_t offset) {
  const std::lock_guard lock(mutex_);
  for (Membership& member : memberships_) {
    if (member.shared != shared) continue;
    Handle& handle = member.handles[offset];
    if (!handle) handle = make_handle(shared, offset);
    return handle;
  }
  return make_handle(shared, offset);
}

std::shared_ptr<Allocation> allocate(std::size_t bytes, c10::Device device,
                                     std::optional<std::string> group_name) {
  auto made = std::make_shared<Allocation>(bytes, device, std::move(group_name));
  const std::lock_guard lock(registry().mutex);
  registry().by_base[address(made->base())] = made;
  return made;
}

at::Tensor allocate_bytes(std::int64_t bytes, c10::Device device) {
  const auto allocation = allocate(static_cast<std::size_t>(bytes), device, std::nullopt);
  return at::for_blob(allocation->base(), {bytes})
      .deleter([](void* base) { free_allocation(base); })
      .options(at::TensorOptions().dtype(at::kByte).device(allocation->device()))
      .target_device(allocation->device())
      .make_tensor();
}

std::shared_ptr<Allocation> find_allocation(const void* pointer) {
  std::shared_ptr<Allocation> found;  // let go of, and asked, outside the lock
  {
    const std::lock_guard lock(registry().mutex);
    found = find_in(registry().by_base, pointer);
    if (!found) found = find_in(registry().user_buffers, pointer);
  }
  return found && found->still_there() ? found : nullptr;
}

void add_user_buffer(std::shared_ptr<Allocation> buffer) {
  const std::uintptr_t start = address(buffer->base());
  std::vector<std::shared_ptr<Allocation>> gone;  // let go of outside the lock
  const std::lock_guard lock(registry().mutex);
  Registry::Map& map = registry().user_buffers;
  auto at = map.lower_bound(start);
  if (at != map.end() && at->second == buffer) return;
  if (at != map.begin() && std::prev(at)->second->contains(buffer->base())) --at;
  while (at != map.end() && (at->first <= start || buffer->contains(at->second->base()))) {
    at->second->retire();
    gone.push_back(std::move(at->second));
    at = map.erase(at);
  }
  map[start] = std::move(buffer);
}

bool free_allocation(const void* base) {
  std::shared_ptr<Allocation> gone;  // let go of outside the lock
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().by_base.find(address(base));
  if (found == registry().by_base.end()) return false;
  gone = std::move(found->second);
  registry().by_base.erase(found);
  return true;
}

}  // namespace symm
