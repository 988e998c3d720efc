#include "backend/engine/communicator.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>
#include <utility>

#include "backend/engine/group/call_record.hpp"
#include "backend/engine/group/group_memory.hpp"
#include "backend/engine/group/message_notes.hpp"
#include "backend/engine/group/settings.hpp"
#include "backend/engine/group/status_exchange.hpp"
#include "backend/engine/group/validation.hpp"
#include "backend/engine/host/host_trace.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/cpu/host_collectives.hpp"
#include "kernels/cpu/streaming.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/group/peer_memory.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

// The last proposal must be as the first.
template <class Value>
void check_same(const LocalGroup& group, const char* name, Value Agreement::*setting,
                const std::vector<Agreement>& proposals) {
  const Value expected = proposals.front().*setting;
  const Value found = proposals.back().*setting;
  if (found == expected) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": expected the same on every rank of group \"" +
                  group.group_name() + "\", got " + std::to_string(expected) + " on " +
                  group.rank_name(0) + " and " + std::to_string(found) + " on " +
                  group.rank_name(static_cast<int>(proposals.size()) - 1));
}

}  // namespace

Communicator::Communicator(KeyValueStore& store, CommunicatorConfig config)
    : config_(std::move(config)) {
  check_config(config_);
  config_.timeout = within_longest(config_.timeout);
  const std::vector<std::int64_t> global_ranks = config_.global_ranks;
  if (config_.global_ranks.empty()) {
    config_.global_ranks.resize(static_cast<std::size_t>(config_.world_size));
    std::iota(config_.global_ranks.begin(), config_.global_ranks.end(), 0);
  }
  agreement_ = std::make_unique<Agreement>(Agreement::proposed_by(config_));
  if (agreement_->single_copy == SingleCopy::kAlways) permit_reads_by_peers();
  selected_isa();  // a wrong SYMM_ISA is an error of set-up
  group_ =
      LocalGroup::connect(store, {.group_name = config_.group_name,
                                  .rank = config_.rank,
                                  .world_size = config_.world_size,
                                  .global_ranks = global_ranks,
                                  .timeout = config_.timeout,
                                  .payload = agreement_->encode(),
                                  .busy_threads = config_.busy_threads,
                                  .region_bytes = GroupMemory::region_bytes(config_.world_size),
                                  .later_bytes = agreement_->workspace_bytes});
  peer_memory_ = std::make_unique<PeerMemory>(*group_);
  if (world_size() > 1) {
    adopt_agreement();
    memory_ = std::make_unique<GroupMemory>(
        *group_, agreement_->workspace_bytes,
        GroupMemory::Patience{kLongestTimeout, [this] { return !trace_->keep_waiting(rank()); }});
  }
  trace_ = std::make_unique<HostTrace>(*group_, memory_.get(), *peer_memory_);
  if (memory_) {
    executor_ = std::make_unique<HostExecutor>(memory_->view(), group_->policy(), *trace_);
  }
  comparison_ = std::make_unique<MessageComparison>(*group_, memory_.get());
  mailboxes_ =
      std::make_unique<MailboxEngine>(config_, memory_.get(), *group_, *comparison_, *peer_memory_);
}

// Every rank has all proposals, so all decide the same.
void Communicator::adopt_agreement() {
  std::vector<Agreement> proposals;
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::optional<Error> refused =
        try_step([&] { proposals.push_back(Agreement::decode(group_->payload(rank))); });
    if (refused) {
      throw Error(refused->code(), group_->prefix(), group_->rank_name(rank), ": ",
                  refused->what());
    }
    check_same(*group_, "workspace_bytes", &Agreement::workspace_bytes, proposals);
    check_same(*group_, "device_workspace_bytes", &Agreement::device_workspace_bytes, proposals);
    check_same(*group_, "max_device_blocks", &Agreement::max_device_blocks, proposals);
    check_same(*group_, "deterministic", &Agreement::deterministic, proposals);
  }
  *agreement_ = proposals.front();
  probe_memory(proposals);
}

// Collective, or on no rank: all ranks have all proposals.
void Communicator::probe_memory(const std::vector<Agreement>& proposals) {
  using enum SingleCopy;
  const auto chosen = [&](SingleCopy choice) {
    return std::ranges::find(proposals, choice, &Agreement::single_copy);
  };
  const auto asks = chosen(kAlways);
  if (asks == proposals.end() || chosen(kNever) != proposals.end()) return;
  std::vector<MemoryProbe> offers;
  offers.reserve(proposals.size());
  for (const Agreement& one : proposals) offers.push_back(one.memory_probe);
  const auto refusal = peer_memory_->probe(*group_, offers, config_.timeout);
  if (!refusal) return;
  throw Error(ErrorCode::kUnsupported, group_->prefix(), "SYMM_SINGLE_COPY=1 on ",
              group_->rank_name(static_cast<int>(asks - proposals.begin())), ": ",
              group_->rank_name(refusal->reader), " cannot read the memory of ",
              group_->rank_name(refusal->owner), ": ",
              refusal->error == 0 ? "another process has its pid there"
                                  : describe_system_error(refusal->error));
}

template <class Body>
void Communicator::run_call(const CallRecord& record, const CollectiveArgs& args,
                            milliseconds timeout, Body&& body) {
  trace_->enter(record, args, timeout.count() > 0 ? within_longest(timeout) : config_.timeout);
  bool went_well = false;
  try {
    went_well = trace_->verify_all() && body();
  } catch (const Interrupted&) {
    const Error error = interrupted_error();
    trace_->fail(error.code(), error.what());
    throw;
  } catch (const Error& error) {
    // A peer that left because of a failure has published it: that is the cause.
    if (trace_->check_peers()) trace_->fail(error.code(), error.what());
  } catch (const std::exception& error) {
    trace_->fail(ErrorCode::kSystem, error.what());
  }
  if (!went_well) throw Error(group_->failure());
  trace_->complete();
}

// A group of one has the algorithms of two ranks, without a peer.
Plan Communicator::plan(const CollectiveArgs& args, const PlanRequest& request, PlanTarget target,
                        WireKind wire) const {
  check_usable();
  validate_request(args.kind, request, target, *agreement_);
  const bool is_host = target == PlanTarget::kHost;
  const PlanTable& table = is_host ? agreement_->tables.host : agreement_->tables.gpu_of(wire);
  const std::uint64_t bytes =
      is_host ? plan_bytes(args, world_size()) : device_plan_bytes(args, world_size(), wire, 1);
  return table.select(args.kind, std::max(2, world_size()), bytes, agreement_->algorithm, request);
}

void Communicator::run(const CollectiveArgs& args, milliseconds timeout,
                       const PlanRequest& request) {
  validate_collective(args, rank(), world_size(), group_->names());
  const std::lock_guard lock(call_mutex_);
  const Plan plan = this->plan(args, request, PlanTarget::kHost);
  const ReduceKernels* kernels =
      reduces(args.kind) ? &reduce_kernels(args.dtype, args.op, selected_isa()) : nullptr;
  if (world_size() == 1) {
    trace_->count();
    run_alone(args, kernels);
    return;
  }
  CallRecord record = make_record(args, plan, next_sequence());
  const InputArray input = input_array(args, rank(), plan.algorithm, PlanTarget::kHost);
  std::optional<SegmentTable::Location> location;
  if (args.kind == CollectiveKind::kAllToAll) {
    location = location_of_shares(args);
  } else if (input.data != nullptr && input.bytes > 0) {
    location = group_->segments().find(input.data, input.bytes);
  }
  if (location) {
    record.segment = SegmentTable::in_record(location->segment->number());
    record.offset = location->offset;
  }
  executor_->begin(
      {.element_bytes = dtype_bytes(args.dtype),
       .kernels = kernels,
       .factor = args.factor,
       .in_place = location.has_value(),
       .base = location ? location->segment->base(rank()) : nullptr,
       .reads_processes = peer_memory_->is_used(),
       .streams = output_bytes(args) >= kStreamingBytes && !reduces_in_place(args, rank())});
  run_call(record, args, timeout,
           [&] { return run_collective(*executor_, args, plan, *memory_) && executor_->end(); });
}

std::optional<SegmentTable::Location> Communicator::location_of_shares(
    const CollectiveArgs& args) const {
  const std::size_t size = dtype_bytes(args.dtype);
  std::optional<SegmentTable::Location> location;
  std::size_t total = 0;
  for (std::size_t r = 0; r < args.input_parts.size(); ++r) {
    const std::size_t bytes = args.input_parts[r].count * size;
    if (static_cast<int>(r) == rank() || bytes == 0) continue;
    const auto found = group_->segments().find(args.input_parts[r].data, bytes);
    if (!found || (location && location->segment != found->segment)) return std::nullopt;
    location = found;
    total += bytes;
  }
  if (!location || total <= kSmallSlotBytes) return std::nullopt;
  location->offset = 0;
  return location;
}

void Communicator::validate(const CollectiveArgs& args) const {
  check_usable();
  validate_collective(args, rank(), world_size(), group_->names());
}

std::uint64_t Communicator::next_sequence() const { return trace_->sequence() + 1; }

MailboxEngine& Communicator::point_to_point() { return *mailboxes_; }

void Communicator::check_segment(const LocalSegment& local) {
  check_usable();
  if (local.runtime().kind() == DeviceKind::kHost) return;
  const auto& runtime = static_cast<const GpuRuntime&>(local.runtime());
  const std::lock_guard lock(device_mutex_);
  use_device({runtime.kind(), runtime.identity().index});
}

void Communicator::prepare_segment(const Segment& segment) {
  check_segment(*segment.local());
  if (!segment.row()) return;
  const std::lock_guard lock(device_mutex_);
  if (device_group_) device_group_->clear_row_of(segment);
}

void Communicator::add_segment(const std::shared_ptr<Segment>& segment, bool symmetric) {
  const std::lock_guard lock(call_mutex_);
  check_segment(*segment->local());
  if (world_size() == 1) return;
  group_->segments().add({segment, symmetric});
  const std::lock_guard device_lock(device_mutex_);
  if (device_group_) device_group_->set_segment(*segment);
}

void Communicator::set_symmetric(const std::shared_ptr<Segment>& segment) {
  group_->segments().set_symmetric(segment);
}

void Communicator::remove_segment(const std::shared_ptr<Segment>& segment) {
  if (DeviceGroup* made = device_group_if_made()) made->drain();
  const std::lock_guard lock(call_mutex_);
  group_->segments().remove(segment);
}

void Communicator::use_device(DeviceId device) {
  if (device_ && *device_ != device) {
    throw Error(ErrorCode::kInvalidArgument,
                group_->prefix() + "a group uses one device a rank: it has used " +
                    device_name(*device_) + " and was now given " + device_name(device));
  }
  device_ = device;
}

void Communicator::check_usable() const {
  group_->check_usable();
  if (!is_suspended()) [[likely]] {
    return;
  }
  throw Error(ErrorCode::kAborted, group_->prefix(),
              "the group is suspended: it has no memory for calls until resume() was called on "
              "every rank");
}

Communicator::MemoryUse Communicator::memory_use() const {
  MemoryUse use;
  use.suspended = is_suspended();
  use.host_bytes = group_->shared_bytes();
  if (memory_) {
    const std::size_t workspace = memory_->made_workspace_bytes();
    use.suspendable_bytes += workspace;
    if (!use.suspended) use.host_bytes += workspace;
  }
  if (const DeviceGroup* device = device_group_if_made()) {
    if (device->has_memory()) use.device_bytes = device->segment_bytes();
    const bool takes_part = use.suspended ? !device->has_memory() : device->can_be_suspended();
    if (takes_part) use.suspendable_bytes += device->segment_bytes();
  }
  return use;
}

void Communicator::suspend(milliseconds timeout) {
  const auto hold = group_->hold();  // NOTE [Order of locks]
  const std::lock_guard lock(call_mutex_);
  check_usable();
  DeviceGroup* device = device_group_if_made();
  if (device) device->settle();
  const Deadline deadline(timeout.count() > 0 ? within_longest(timeout) : config_.timeout);
  using enum LocalGroup::Purpose;
  const std::uint64_t ready = device && device->can_be_suspended() ? 1 : 0;
  const auto others = group_->exchange_words(kSuspend, std::array{ready}, 1, deadline);
  const bool all_ready =
      std::ranges::all_of(others.messages, [](const auto& words) { return words[0] == 1; });
  if (!all_ready) device = nullptr;
  if (device) {
    const auto failed = try_step([&] { device->save(); });
    const auto refused = try_step([&] { exchange_status(*group_, kSuspend, failed, deadline); });
    if (refused) {
      device->discard_copy();
      throw Error(*refused);
    }
    device->release();
  }
  if (memory_) memory_->release_workspace();
  suspended_.store(true, std::memory_order_release);
  group_->exchange_metadata(kSuspend, {}, deadline);
}

void Communicator::resume(milliseconds timeout) {
  const auto hold = group_->hold();
  const std::lock_guard lock(call_mutex_);
  group_->check_usable();
  if (!is_suspended()) {
    throw Error(ErrorCode::kAborted, group_->prefix(), "resume(): the group is not suspended");
  }
  const Deadline deadline(timeout.count() > 0 ? within_longest(timeout) : config_.timeout);
  DeviceGroup* const device = device_group_if_made();
  if (device && !device->has_memory()) device->resume(deadline);
  std::shared_ptr<LocalSegment> workspace;
  const auto failed = try_step([&] {
    if (memory_) workspace = memory_->allocate_released();
  });
  exchange_status(*group_, LocalGroup::Purpose::kResume, failed, deadline);
  if (workspace) memory_->set_workspace(group_->share(std::move(workspace), deadline));
  suspended_.store(false, std::memory_order_release);
}

DeviceGroup& Communicator::device_group(DeviceId device) {
  check_usable();
  if (DeviceGroup* made = device_group_if_made(); made != nullptr && made->device() == device) {
    return *made;
  }
  const std::lock_guard lock(device_mutex_);
  GpuRuntime& runtime = device_library(device.kind).runtime(device.index);
  use_device(device);
  if (device_problem_) throw Error(*device_problem_);
  if (device_group_) return *device_group_;
  if (world_size() > kMaxDeviceRanks) {
    throw Error(ErrorCode::kUnsupported, group_->prefix() + "a group on devices has at most " +
                                             std::to_string(kMaxDeviceRanks) + " ranks, got " +
                                             std::to_string(world_size()));
  }
  make_device_group(runtime);
  return *device_group_;
}

// A failure is posted to the peers and thrown by every later call. Peers that the post does not
// reach have their time-out; the error itself matters more.
void Communicator::make_device_group(GpuRuntime& runtime) {
  const DeviceGroupContext context{config_, *agreement_, *group_, memory_.get(), *comparison_};
  const auto failed =
      try_step([&] { device_group_ = std::make_unique<DeviceGroup>(context, runtime); });
  if (failed) {
    const std::string name = device_name(*device_);
    device_problem_ = Error(failed->code(), group_->prefix() + name + ": " + failed->what());
    if (world_size() > 1) try_step([&] { DevicePeers::post_failure(*group_, name, *failed); });
    throw Error(*device_problem_);
  }
  for (const SegmentTable::Entry& one : group_->segments().entries()) {
    device_group_->set_segment(*one.segment);
  }
  made_device_group_.store(device_group_.get(), std::memory_order_release);
}

// The last owner may let go inside a completion callback on the mailbox thread, which cannot wait
// for itself: then another thread takes the mailboxes apart, with what they refer to.
Communicator::~Communicator() {
  shutdown();
  if (!mailboxes_->on_background_thread()) return;
  device_group_.reset();
  std::thread([group = std::move(group_), memory = std::move(memory_),
               peer_memory = std::move(peer_memory_), comparison = std::move(comparison_),
               mailboxes = std::move(mailboxes_)]() mutable {
    mailboxes.reset();
  }).detach();
}

void Communicator::abort(const std::string& reason) {
  group_->fail(Error(ErrorCode::kAborted, group_->prefix() + "aborted: " + reason));
}

Error Communicator::time_out(const std::string& reason) {
  group_->fail(Error(ErrorCode::kTimeout, group_->prefix() + reason));
  return group_->failure();
}

void Communicator::shutdown() {
  group_->leave();
  mailboxes_->stop();
  if (DeviceGroup* made = device_group_if_made()) made->stop();
}

std::optional<Error> Communicator::failure() const {
  if (!group_->failed()) return std::nullopt;
  return group_->failure();
}

}  // namespace symm
