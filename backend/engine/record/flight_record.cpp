#include "backend/engine/record/flight_record.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "backend/engine/record/flight_entry.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/printable_text.hpp"

namespace symm {

namespace {

constexpr std::size_t kDefaultEntries = 2000;  // PyTorch's
constexpr std::size_t kMostEntries = std::size_t{1} << 20;
constexpr std::size_t kChunkEntries = 64;

std::size_t entries_in_environment() {
  const EnvironmentVariable size =
      first_variable({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"});
  if (size.name == nullptr) return kDefaultEntries;
  const char* const end = size.value + std::strlen(size.value);
  std::size_t entries = 0;
  const auto [stop, problem] = std::from_chars(size.value, end, entries);
  if (problem != std::errc() || stop != end || entries > kMostEntries) {
    throw Error(ErrorCode::kInvalidArgument, size.name, ": expected a number from 0 to ",
                kMostEntries, ", the calls that are recorded, got '", printable(size.value), "'");
  }
  return entries;
}

const FlightEntry::ThreadName& thread_name() {
  static thread_local const FlightEntry::ThreadName name = [] {
    FlightEntry::ThreadName text{};
    ::pthread_getname_np(::pthread_self(), text.data(), text.size());
    return text;
  }();
  return name;
}

struct Registry {
  std::uint32_t generation;
  std::unique_ptr<FlightRecord> record;
};
std::atomic<Registry*> process_record{nullptr};

}  // namespace

struct FlightRecord::Chunk {
  std::array<FlightEntry, kChunkEntries> entries;
};

void FlightGroup::describe(const std::string& description) {
  const std::lock_guard lock(mutex_);
  description_ = description.empty() ? "undefined" : description;
}

std::string FlightGroup::description() const {
  const std::lock_guard lock(mutex_);
  return description_;
}

void FlightTensors::clear() {
  used_ = 0;
  tensors_ = 0;
  inputs_ = 0;
}

void FlightTensors::add(std::span<const std::int64_t> sizes, const char* dtype,
                        std::int64_t leading) {
  const std::size_t dimensions = sizes.size() + (leading > 0 ? 1 : 0);
  if (numbers_.size() < used_ + 1 + dimensions) numbers_.resize(used_ + 1 + dimensions);
  if (dtypes_.size() == tensors_) dtypes_.resize(tensors_ + 1);
  std::int64_t* next = numbers_.data() + used_;
  used_ += 1 + dimensions;
  *next++ = static_cast<std::int64_t>(dimensions);
  if (leading > 0) *next++ = leading;
  std::copy(sizes.begin(), sizes.end(), next);
  dtypes_[tensors_++] = dtype;
}

void FlightTicket::started() const {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(*entry_);
  if (entry_->use == use_) entry_->started = wall_clock_ns();
}

void FlightTicket::ended(bool well) const {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(*entry_);
  if (entry_->use != use_ || entry_->retired) return;
  entry_->retired = true;
  if (!well) return;
  entry_->completed = wall_clock_ns();
  if (entry_->started == 0) entry_->started = entry_->completed;
}

void FlightTicket::on_device(const DeviceProgress& progress) const {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(*entry_);
  if (entry_->use == use_) entry_->progress = progress;
}

// The number is free again where nobody has taken the next one, so that the numbers of the ranks
// stay alike: the analyser aligns their rings by them.
void FlightTicket::discard() const {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(*entry_);
  if (entry_->use != use_) return;
  const std::uint64_t id = std::exchange(entry_->id, FlightEntry::kNone);
  ++entry_->use;
  std::uint64_t next = id + 1;
  entry_->record->next_.compare_exchange_strong(next, id, std::memory_order_relaxed);
}

FlightRecord* FlightRecord::of_process() {
  const std::uint32_t generation = fork_generation();
  Registry* found = process_record.load(std::memory_order_acquire);
  if (found != nullptr && found->generation == generation) return found->record.get();
  const std::size_t size = entries_in_environment();
  auto fresh = std::make_unique<Registry>();
  fresh->generation = generation;
  if (size > 0) fresh->record = std::make_unique<FlightRecord>(size);
  if (process_record.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) {
    return fresh.release()->record.get();
  }
  return found->record.get();
}

FlightRecord::FlightRecord(std::size_t size)
    : size_(size),
      generation_(fork_generation()),
      chunks_((size + kChunkEntries - 1) / kChunkEntries) {}

FlightRecord::~FlightRecord() {
  for (std::atomic<Chunk*>& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

FlightGroup& FlightRecord::add_group(const std::string& name, int rank,
                                     std::vector<std::int64_t> ranks) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t next = next_.load(std::memory_order_relaxed);
  std::erase_if(groups_, [&](const std::unique_ptr<FlightGroup>& group) {
    return group->ended_at_ && next >= *group->ended_at_ + size_;
  });
  groups_.push_back(std::make_unique<FlightGroup>(groups_made_++, name, rank, std::move(ranks)));
  return *groups_.back();
}

void FlightRecord::end_group(FlightGroup& group) {
  if (generation_ != fork_generation()) return;  // the parent's mutex may be locked for ever
  const std::lock_guard lock(mutex_);
  group.ended_at_ = next_.load(std::memory_order_relaxed);
}

FlightEntry& FlightRecord::place(std::uint64_t id) {
  const std::size_t index = id % size_;
  std::atomic<Chunk*>& place = chunks_[index / kChunkEntries];
  Chunk* chunk = place.load(std::memory_order_acquire);
  if (chunk == nullptr) {
    auto fresh = std::make_unique<Chunk>();
    for (FlightEntry& entry : fresh->entries) entry.record = this;
    if (place.compare_exchange_strong(chunk, fresh.get(), std::memory_order_acq_rel)) {
      chunk = fresh.release();
    }
  }
  return chunk->entries[index % kChunkEntries];
}

FlightEntry* FlightRecord::open(FlightGroup& group, const FlightCall& call) {
  const std::uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
  FlightEntry& entry = place(id);
  entry.lock();
  // A thread that was overtaken by a whole ring comes too late.
  if (entry.id != FlightEntry::kNone && entry.id > id) {
    entry.unlock();
    return nullptr;
  }
  entry.id = id;
  ++entry.use;
  entry.group = &group;
  entry.call = call;
  entry.tensors.clear();
  entry.progress = {};
  entry.created = wall_clock_ns();
  entry.started = call.starts ? entry.created : 0;
  entry.completed = 0;
  entry.retired = false;
  entry.thread = static_cast<std::uint64_t>(::pthread_self());
  entry.thread_name = thread_name();
  return &entry;
}

FlightTensors& FlightRecord::tensors_of(FlightEntry& entry) { return entry.tensors; }

FlightTicket FlightRecord::close(FlightEntry& entry) {
  const FlightTicket ticket(&entry, entry.use);
  entry.unlock();
  return ticket;
}

void FlightRecord::forget_counters(FlightGroup& group) {
  if (generation_ != fork_generation()) return;  // a child has no counters
  const std::lock_guard lock(mutex_);
  visit([&](FlightEntry& entry) {
    if (entry.group != &group) return;
    entry.look_at_device();
    entry.progress = {};
  });
}

}  // namespace symm
