#include "backend/engine/device/device_group.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/engine/device/device_choice.hpp"
#include "backend/engine/group/settings.hpp"
#include "backend/engine/group/validation.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {

using std::chrono::milliseconds;

std::string device_name(DeviceId device) {
  return std::string(device_kind_name(device.kind)) + ":" + std::to_string(device.index);
}

DeviceGroup::DeviceGroup(const DeviceGroupContext& context, GpuRuntime& runtime)
    : context_(context),
      runtime_(runtime),
      trace_(context.group, context.memory),
      messages_(context.group, trace_),
      announcements_(context.group, context.memory),
      resources_(std::make_unique<Resources>()) {
  const DeviceLayout layout =
      DeviceLayout::of(world_size(), context.agreement.device_workspace_bytes,
                       static_cast<int>(context.agreement.max_device_blocks));
  resources_->segment = std::make_unique<DeviceSegment>(runtime, layout.total_bytes);
  resources_->kernels = runtime.make_group_kernels(
      {.rank = rank(),
       .world_size = world_size(),
       .layout = layout,
       .page = &trace_.own_page(),
       .most_blocks = static_cast<int>(context.agreement.max_device_blocks),
       .poisons = poison_in_environment()});
  resources_->kernels->set_peer(rank(), resources_->segment->base(), WireKind::kLL);
  resources_->peers = std::make_unique<DevicePeers>(context.group, runtime, *resources_->segment);
  messages_in_order_.reserve(2 * static_cast<std::size_t>(world_size()));
  peer_inputs_.resize(static_cast<std::size_t>(world_size()));
  peer_outputs_.resize(static_cast<std::size_t>(world_size()));
  connected_ = world_size() == 1;
  if (world_size() > 1) resources_->peers->post();
  watchdog_ =
      std::make_unique<DeviceWatchdog>(context.group, trace_, messages_, context.comparison);
  if (world_size() > 1) {
    LocalGroup& group = context.group;
    failure_exit_ =
        FailureExit::of_environment(group.watchdog(), [&group]() -> std::optional<Error> {
          if (!group.failed() || group.ended_here()) return std::nullopt;
          return group.failure();
        });
  }
  context.group.set_abort_word(&trace_.own_page().abort);
}

void DeviceGroup::stop() {
  failure_exit_.reset();
  watchdog_->stop();
}

// What the device may still be using is kept for ever where it cannot be waited for: at the end of
// the process, or after an error of the device.
DeviceGroup::~DeviceGroup() {
  stop();
  context_.group.set_abort_word(nullptr);
  store_release(&trace_.own_page().abort, std::uint32_t{1});
  if (!synchronize()) static_cast<void>(resources_.release());
}

bool DeviceGroup::synchronize() noexcept {
  const RelaxedCapture relaxed(runtime_);
  return !try_step([this] { runtime_.synchronize(); });
}

void DeviceGroup::drain() {
  constexpr milliseconds kLookPeriod{1};
  const auto ended = [this] {
    return load_acquire(&trace_.own_page().completed) >= trace_.launched() && messages_.all_ended();
  };
  while (!trace_.captured() && !context_.group.failed() && !ended()) {
    if (runtime_.is_in_error()) return;
    std::this_thread::sleep_for(kLookPeriod);
  }
  if (!trace_.captured() || context_.group.failed()) return;
  synchronize();
}

void DeviceGroup::check_usable() const {
  context_.group.check_usable();
  if (!has_memory()) [[unlikely]] {
    throw Error(ErrorCode::kAborted, context_.group.prefix(), "the group is suspended");
  }
  // A kernel that gave up has let its stream go on: nothing may build on what it left.
  if (gave_up()) [[unlikely]] {
    throw_failure();
  }
}

void DeviceGroup::fail_group(ErrorCode code, const std::string& text) const {
  LocalGroup& group = context_.group;
  if (!group.failed()) group.fail(Error(code, group.prefix() + text));
  throw Error(group.failure());
}

void DeviceGroup::connect(milliseconds timeout, bool captured, const std::string& call) {
  if (connected_) return;
  DevicePeers& peers = *resources_->peers;
  if (captured) {
    throw Error(ErrorCode::kUnsupported, call + ": the group has not used " +
                                             device_name(device()) +
                                             " yet; call once before capture");
  }
  try {
    peers.connect_all(context_.agreement.wire == WireChoice::kLine, Deadline(timeout), call);
  } catch (const Error& error) {
    if (peers.refusal()) throw;
    fail_group(error.code(), error.what());
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) set_peer(peer);
  }
  if (context_.agreement.wire != WireChoice::kLL && peers.has_lines()) {
    wire_ = WireKind::kLine;
    resources_->kernels->set_wire(wire_);
  }
  ranks_of_gpu_ = peers.most_ranks_of_a_gpu();
  resources_->kernels->set_ranks_of_gpu(ranks_of_gpu_);
  connected_ = true;
}

void DeviceGroup::connect_peer(int peer, milliseconds timeout, bool captured,
                               const std::string& call) {
  DevicePeers& peers = *resources_->peers;
  if (peers.base(peer) != nullptr) return;
  if (captured) {
    throw Error(ErrorCode::kUnsupported,
                call + ": the group has not used " + device_name(device()) + " with " +
                    context_.group.rank_name(peer) + " yet; call once before capture");
  }
  try {
    peers.map(peer, context_.agreement.wire == WireChoice::kLine, Deadline(timeout), call);
  } catch (const Error& error) {
    if (peers.problem(peer)) throw;
    fail_group(error.code(), error.what());
  }
  set_peer(peer);
}

void DeviceGroup::set_peer(int peer) {
  const DevicePeers& peers = *resources_->peers;
  const bool by_lines = context_.agreement.wire != WireChoice::kLL && peers.has_lines_to(peer);
  resources_->kernels->set_peer(peer, peers.base(peer), by_lines ? WireKind::kLine : WireKind::kLL);
}

void DeviceGroup::connect_all(milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  check_usable();
  connect(limit(timeout), false, "connect_all");
}

void DeviceGroup::launch(const CollectiveArgs& args, const DeviceLaunch& to,
                         const PlanRequest& request) {
  const std::lock_guard lock(mutex_);
  check_usable();
  validate_collective(args, rank(), world_size(), context_.group.names());
  validate_request(args.kind, request, PlanTarget::kGpu, context_.agreement);
  if (!connected_) connect(limit(to.timeout), to.captured, std::string(collective_name(args.kind)));
  const Choice choice = choose(args, request);
  if (to.captured) trace_.note_capture();
  CallRecord record = make_record(args, choice.plan, trace_.next_sequence());
  if (const std::optional<Found>& found = choice.location()) {
    record.segment = SegmentTable::in_record(found->segment->number());
    record.offset = found->offset;
  }
  trace_.post(record, limit(to.timeout));
  try {
    put(args, choice, {.stream = to.stream, .timeout = limit(to.timeout)});
  } catch (const Error& error) {
    // A posted call that cannot be launched leaves the peers waiting: they must learn of it.
    fail_group(error.code(), trace_.call_name(record.sequence) + ": " + error.what());
  }
  if (!trace_.comparison_is_due()) return;
  if (const std::optional<Error> error = trace_.difference()) {
    context_.group.fail(*error);
    throw Error(context_.group.failure());
  }
}

void DeviceGroup::put(const CollectiveArgs& args, const Choice& choice,
                      const LaunchOptions& options) {
  GroupKernels& kernels = *resources_->kernels;
  if (choice.plan.algorithm == Algorithm::kMultimem) {
    put_multimem(args, choice, options);
    if (args.norm.columns > 0) kernels.norm_rows(args, options.stream);
  } else if (choice.symmetric_output) {
    const Found& output = *choice.symmetric_output;
    for (int r = 0; r < world_size(); ++r) {
      peer_outputs_[static_cast<std::size_t>(r)] = output.segment->base(r) + output.offset;
    }
    kernels.launch_copies(args, location_of(output), peer_outputs_, options);
  } else if (args.kind == CollectiveKind::kAllToAll || choice.plan.algorithm == Algorithm::kBulk) {
    kernels.launch(args, choice.plan, {options.stream, options.timeout, output_range(args)});
  } else {
    kernels.launch(args, choice.plan, options);
  }
}

// `ranks` keeps the addresses while the call is put on a stream.
MulticastMemory DeviceGroup::multicast_memory(const Found& found,
                                              std::vector<std::byte*>& ranks) const {
  for (int r = 0; r < world_size(); ++r) {
    ranks[static_cast<std::size_t>(r)] = found.segment->base(r) + found.offset;
  }
  return {found.segment->multicast().base() + found.offset, ranks, location_of(found)};
}

void DeviceGroup::put_multimem(const CollectiveArgs& args, const Choice& choice,
                               const LaunchOptions& options) {
  MultimemMemory memory;
  if (choice.symmetric_input)
    memory.input = multicast_memory(*choice.symmetric_input, peer_inputs_);
  if (choice.symmetric_output) {
    memory.output = multicast_memory(*choice.symmetric_output, peer_outputs_);
  }
  resources_->kernels->launch_multimem(args, choice.plan, memory, options);
}

SelfMessages DeviceGroup::check_transfer(std::span<const TransferOp> ops) const {
  SelfMessages own(context_.group);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const TransferOp& op = ops[i];
    const char* const name = op.is_send ? "send" : "recv";
    const std::string here = context_.group.rank_name(rank());
    if (op.peer < 0 || op.peer >= world_size()) {
      throw Error(ErrorCode::kInvalidArgument, name, ": expected a group rank from 0 to ",
                  world_size() - 1, ", got ", op.peer, " on ", here);
    }
    if (op.bytes > 0 && op.data == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, name, " with ", context_.group.rank_name(op.peer),
                  " on ", here, ": expected memory");
    }
    if (op.peer == rank()) own.add(i, op);
  }
  own.check_all_met();
  return own;
}

// As the kernels want them: a message to oneself as a send and its recv next to each other.
std::span<const TransferOp> DeviceGroup::arranged(std::span<const TransferOp> ops,
                                                  const SelfMessages& own) {
  if (own.pairs().empty()) return ops;
  messages_in_order_.clear();
  for (const TransferOp& op : ops) {
    if (op.peer != rank()) messages_in_order_.push_back(op);
  }
  for (const SelfMessages::Pair& pair : own.pairs()) {
    messages_in_order_.push_back(ops[pair.send]);
    messages_in_order_.push_back(ops[pair.recv]);
  }
  return messages_in_order_;
}

void DeviceGroup::transfer(std::span<const TransferOp> ops, const DeviceLaunch& to) {
  const std::lock_guard lock(mutex_);
  check_usable();
  const SelfMessages own = check_transfer(ops);
  if (ops.empty()) return;
  for (const TransferOp& op : ops) {
    if (op.peer == rank()) continue;
    // Before the peer is waited for, which may have given its end to the host.
    if (!to.captured) context_.comparison.note(op, runtime_.kind());
  }
  try {
    for (const TransferOp& op : ops) {
      if (op.peer == rank()) continue;
      connect_peer(op.peer, limit(to.timeout), to.captured, op.is_send ? "send" : "recv");
    }
  } catch (const Error&) {
    for (const TransferOp& op : ops) context_.comparison.lose_count(op);
    throw;
  }
  if (to.captured) trace_.note_capture();
  for (const TransferOp& op : ops) {
    if (op.peer == rank()) continue;
    if (to.captured) context_.comparison.lose_count(op);
    messages_.note(op);
  }
  try {
    resources_->kernels->transfer(arranged(ops, own),
                                  {.stream = to.stream, .timeout = limit(to.timeout)});
  } catch (const Error& error) {
    fail_group(error.code(), std::string("send and recv: ") + error.what());
  }
  for (const TransferOp& op : ops) {
    if (op.peer != rank()) announcements_.note(op, to.captured);
  }
}

std::optional<int> DeviceGroup::find_sender(const AwaitedRecv& recv) {
  const std::lock_guard lock(mutex_);
  check_usable();
  return announcements_.find(recv.op);
}

void DeviceGroup::look_for_trouble(const AwaitedRecv& recv) {
  const std::lock_guard lock(mutex_);
  announcements_.look_for_trouble(recv, limit(recv.timeout));
}

void DeviceGroup::fold(const FoldCall& call, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  check_usable();
  resources_->kernels->fold(call, stream);
}

void DeviceGroup::copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  check_usable();
  resources_->kernels->copy(to, from, bytes, stream);
}

// The abort word makes kernels leave before the failure can be seen, and they report that they did,
// so a report is there whenever something has gone wrong on this rank's device. Kernels of
// different calls may have met and ended all the same: a peer's record was there before its kernel.
void DeviceGroup::check() {
  LocalGroup& group = context_.group;
  if (!group.failed()) [[likely]] {
    if (const std::optional<Error> error = trace_.difference(true)) group.fail(*error);
    if (!gave_up() && !group.failed()) [[likely]] {
      return;
    }
  }
  throw_failure();
}

DeviceProgress DeviceGroup::last_collective() const {
  if (trace_.captured()) return {};
  const DevicePage& page = trace_.own_page();
  return {&page.entered, &page.completed, trace_.launched()};
}

bool DeviceGroup::gave_up() const {
  const std::uint32_t& fault = trace_.own_page().report.fault;
  return load_acquire(&fault) != static_cast<std::uint32_t>(DeviceFault::kNone);
}

// The watchdog makes the error of a report.
void DeviceGroup::throw_failure() const {
  constexpr milliseconds kPutIntoWords{1'000};
  const LocalGroup& group = context_.group;
  const Deadline deadline(kPutIntoWords);
  while (!group.failed() && !deadline.passed()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (group.failed()) throw Error(group.failure());
  fail_group(ErrorCode::kAborted, "a kernel gave up on " + device_name(device()));
}

// A kernel counts its end before it has ended.
void DeviceGroup::settle() {
  drain();
  const RelaxedCapture relaxed(runtime_);
  runtime_.synchronize();
}

void DeviceGroup::save() {
  const RelaxedCapture relaxed(runtime_);
  const std::lock_guard lock(mutex_);
  resources_->segment->save(*resources_->kernels);
}

void DeviceGroup::discard_copy() {
  const std::lock_guard lock(mutex_);
  resources_->segment->discard_copy();
}

void DeviceGroup::release() {
  const RelaxedCapture relaxed(runtime_);
  const std::lock_guard lock(mutex_);
  resources_->peers->release();
  resources_->segment->release();
  has_memory_.store(false, std::memory_order_relaxed);
}

void DeviceGroup::resume(const Deadline& deadline) {
  const RelaxedCapture relaxed(runtime_);
  const std::lock_guard lock(mutex_);
  DeviceSegment& segment = *resources_->segment;
  const std::optional<Error> own = try_step([&] { segment.restore(*resources_->kernels); });
  try {
    resources_->peers->restore(own, deadline);
  } catch (...) {
    segment.release();
    throw;
  }
  segment.discard_copy();
  has_memory_.store(true, std::memory_order_relaxed);
}

void DeviceGroup::set_segment(const Segment& segment) {
  if (!segment.row()) return;
  const std::lock_guard lock(mutex_);
  clear_rows_.erase(*segment.row());
  resources_->kernels->set_segment(*segment.row(),
                                   {segment.bases(), static_cast<std::size_t>(world_size())});
}

void DeviceGroup::clear_row_of(const Segment& segment) {
  if (!segment.row()) return;
  const std::lock_guard lock(mutex_);
  if (clear_rows_.contains(*segment.row())) return;
  const std::vector<std::byte*> nothing(static_cast<std::size_t>(world_size()));
  resources_->kernels->set_segment(*segment.row(), nothing);
  clear_rows_.insert(*segment.row());
}

}  // namespace symm
