#include "symm_mem/c10d/allocation.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>
#include <tuple>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/symmetric_memory.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"

namespace symm {
namespace {

// `what`, whose last owner waits for the device before it goes.
template <typename T>
std::shared_ptr<T> owned_by(c10::Device device, std::shared_ptr<T> what) {
  if (device.is_cpu()) return what;
  T* const raw = what.get();
  return std::shared_ptr<T>(
      raw, [owned = DeviceOwned(device, std::move(what))](T*) mutable { owned.let_go(); });
}

std::shared_ptr<LocalSegment> allocate_segment(c10::Device device, std::size_t bytes) {
  return owned_by(device, LocalSegment::allocate(device_runtime(device), bytes));
}

SharedAllocation::Layout layout_of(std::size_t bytes) {
  const std::size_t pad_bytes = c10d::symmetric_memory::get_signal_pad_size();
  const std::size_t limit = std::size_t{1} << 62;
  if (bytes > limit || pad_bytes > limit) {
    throw Error(ErrorCode::kInvalidArgument, "alloc: expected a size below 2^62 bytes, got ", bytes,
                " and a signal pad of ", pad_bytes);
  }
  return {bytes, pad_bytes};
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

// A rank's metadata of its allocation: words, followed by the ids of segments that it posts as
// freed, kFreed of them, and by the signal pads that it does not use.
enum Word : std::size_t { kId, kBytes, kPadBytes, kDevice, kCaptured, kSymmetric, kFreed, kWords };
using Words = std::vector<std::uint64_t>;
using WordSpan = std::span<const std::uint64_t>;

constexpr std::size_t kMostPadWords =
    GroupPage::kMessageBytes / sizeof(std::uint64_t) - kWords - FreedSegments::kMostPosted;

WordSpan freed_in(const Words& one) {
  const WordSpan lists = WordSpan(one).subspan(kWords);
  return lists.first(std::min<std::size_t>(lists.size(), one[kFreed]));
}

WordSpan unused_pads_in(const Words& one) {
  return WordSpan(one).subspan(kWords + freed_in(one).size());
}

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

std::vector<WordSpan> freed_by_rank(const std::vector<Words>& all) {
  std::vector<WordSpan> lists;
  for (const Words& one : all) lists.push_back(freed_in(one));
  return lists;
}

// The pad of an allocation that joins a group: one that no rank uses, else the first of a new pad
// segment.
class NextPad {
 public:
  // Refers to `pool`.
  NextPad(c10::Device device, std::size_t bytes, SignalPadPool& pool)
      : device_(device), bytes_(bytes), pool_(pool) {}

  // `all` by rank; the same on every rank.
  void take(const std::vector<Words>& all) {
    std::vector<WordSpan> unused;
    for (const Words& one : all) unused.push_back(unused_pads_in(one));
    pad_ = pool_.take(unused);
  }

  // What can fail on this rank alone. Before the status exchange: after it peers signal.
  void prepare() {
    DeviceRuntime& runtime = device_runtime(device_);
    if (!pad_) {
      fresh_ = allocate_segment(device_, SignalPadPool::segment_bytes(runtime, bytes_));
    } else if (pad_->used_before && bytes_ > 0) {
      // Who ended in the middle of an operation has left signals behind.
      runtime.clear(pad_->segment->local()->base() + pad_->offset, bytes_);
    }
  }

  // Collective where there was none to take.
  SignalPadPool::Pad get(LocalGroup& peers, std::uint64_t number, const Deadline& deadline) {
    if (pad_) return std::move(*pad_);
    return pool_.add(number, owned_by(device_, peers.share(std::move(fresh_), deadline)), bytes_);
  }

 private:
  const c10::Device device_;
  const std::size_t bytes_;
  SignalPadPool& pool_;
  std::optional<SignalPadPool::Pad> pad_;
  std::shared_ptr<LocalSegment> fresh_;
};

}  // namespace

SharedAllocation::SharedAllocation(std::shared_ptr<GroupLink> link, c10::Device device,
                                   std::uint64_t id, const Layout& layout,
                                   std::shared_ptr<Segment> buffers, SignalPadPool::Pad pad)
    : link_(std::move(link)),
      device_(device),
      id_(id),
      layout_(layout),
      buffers_(std::move(buffers)),
      pads_(std::move(pad.segment)),
      fork_generation_(fork_generation()) {
  const int world_size = buffers_->world_size();
  at::Tensor tables = at::empty({2, world_size}, at::kLong);
  for (int rank = 0; rank < world_size; ++rank) {
    buffer_pointers_.push_back(buffers_->base(rank));
    pads_by_rank_.push_back(pads_->base(rank) + pad.offset);
    tables.mutable_data_ptr<std::int64_t>()[rank] =
        static_cast<std::int64_t>(address(buffers_->base(rank)));
    tables.mutable_data_ptr<std::int64_t>()[world_size + rank] =
        static_cast<std::int64_t>(address(pads_by_rank_.back()));
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
      segment_(allocate_segment(device_, bytes)) {}

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
  mine[kCaptured] = captured;
  mine[kSymmetric] = symmetric;
  const FreedSegments::Ids freed = link->freed_here();
  mine[kFreed] = freed.size();
  mine.insert(mine.end(), freed.begin(), freed.end());
  const std::vector<std::uint64_t> unused =
      link->signal_pads().unused(segment_->runtime(), layout_.pad_bytes, kMostPadWords);
  mine.insert(mine.end(), unused.begin(), unused.end());

  SegmentUser* const user = link->user(device_.type());
  const TableRows rows = user ? user->free_rows() : TableRows{};

  std::shared_ptr<SharedAllocation> shared;
  const auto step = [&](const MeshRound& round) {
    std::optional<SegmentRendezvous> rendezvous;
    if (!before && !captured) rendezvous.emplace(round, segment_, rows).post();
    const auto [number, all] =
        peers.exchange_words(LocalGroup::Purpose::kRendezvous, mine, kWords, round.deadline);
    check_same(peers, all, kSymmetric, "value of symmetric");
    if (before && all_have(all, kId, before->id())) {
      if (symmetric && user) user->set_symmetric(before->buffers());
      shared = before;
      return false;
    }
    if (!all_have(all, kCaptured, 0)) {
      throw Error(ErrorCode::kUnsupported, peers.memory_prefix(),
                  "rendezvous: memory cannot join a group while a graph is captured; call it once "
                  "before capture");
    }
    check_same(peers, all, kDevice, "kind of device");
    check_same(peers, all, kBytes, "number of bytes");
    check_same(peers, all, kPadBytes, "size of signal pads");
    NextPad next_pad(device_, layout_.pad_bytes, link->signal_pads());
    next_pad.take(all);
    if (!rendezvous) rendezvous.emplace(round, segment_, rows);
    std::shared_ptr<Segment> buffers = rendezvous->run([&](const Segment& made) {
      if (user) user->prepare_segment(made);
      next_pad.prepare();
    });
    SignalPadPool::Pad pad = next_pad.get(peers, number, round.deadline);
    link->let_go(freed_by_rank(all));
    link->join(user, number, buffers, symmetric);
    shared = std::make_shared<SharedAllocation>(link, device_, number, layout_, std::move(buffers),
                                                std::move(pad));
    return true;
  };
  peers.run_rendezvous(Deadline(timeout), std::ref(step));
  if (shared != before) replace_membership(before, shared);
  return shared;
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
