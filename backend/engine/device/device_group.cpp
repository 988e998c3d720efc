#include "backend/engine/device/device_group.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/engine/group/validation.hpp"
#include "kernels/core/atomics.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

using std::chrono::milliseconds;

DeviceGroup::DeviceGroup(const DeviceGroupContext& context, GpuRuntime& runtime, DeviceId device)
    : context_(context),
      runtime_(runtime),
      device_(device),
      board_(context.config.rank, context.config.world_size, context.memory, context.health),
      messages_(context.config.rank, context.config.world_size, board_),
      resources_(std::make_unique<Resources>()) {
  const DeviceLayout layout =
      DeviceLayout::of(world_size(), context.agreement.device_workspace_bytes);
  resources_->segment = LocalSegment::allocate(runtime, layout.total_bytes);
  resources_->kernels = runtime.make_group_kernels(
      {.rank = rank(), .world_size = world_size(), .layout = layout, .page = &board_.own_page()});
  resources_->kernels->set_peer(rank(), resources_->segment->base());
  resources_->peers = std::make_unique<DevicePeers>(context.mesh, context.health, runtime, device,
                                                    layout.total_bytes);
  shares_.reserve(2 * static_cast<std::size_t>(world_size()));
  peer_inputs_.resize(static_cast<std::size_t>(world_size()));
  peer_outputs_.resize(static_cast<std::size_t>(world_size()));
  connected_ = world_size() == 1;
  if (world_size() > 1) resources_->peers->offer(*resources_->segment);
  watch_ = std::make_unique<DeviceWatch>(rank(), world_size(), board_, messages_, context.health);
  context.health.set_abort_word(&board_.own_page().abort);
}

// What the device may still be using is kept for ever where it cannot be waited for: at the end of
// the process, or after an error of the device.
DeviceGroup::~DeviceGroup() {
  stop();
  context_.health.set_abort_word(nullptr);
  store_release(&board_.own_page().abort, std::uint32_t{1});
  const int mode = runtime_.relax_capture_mode();
  try {
    runtime_.synchronize();
  } catch (const Error&) {
    [[maybe_unused]] const Resources* leaked = resources_.release();
  }
  runtime_.restore_capture_mode(mode);
}

void DeviceGroup::stop() { watch_->stop(); }

void DeviceGroup::drain() {
  constexpr milliseconds kLookPeriod{1};
  const auto ended = [this] {
    return load_acquire(&board_.own_page().completed) >= board_.launched() && messages_.all_ended();
  };
  while (!board_.captured() && !context_.health.failed() && !ended()) {
    std::this_thread::sleep_for(kLookPeriod);
  }
  if (!board_.captured() || context_.health.failed()) return;
  const int mode = runtime_.relax_capture_mode();
  try {
    runtime_.synchronize();
  } catch (const Error&) {
    // Whatever ails the device, nothing of this group runs on it that could be waited for.
  }
  runtime_.restore_capture_mode(mode);
}

void DeviceGroup::check_usable() const {
  if (fork_generation() != context_.fork_generation) {
    throw Error(ErrorCode::kAborted,
                "group \"" + context_.config.group_name +
                    "\" belongs to the parent process; a forked child must make its own");
  }
  // A kernel that gave up has let its stream go on: nothing may build on what it left.
  if (context_.health.failed() || gave_up()) [[unlikely]] {
    throw_failure();
  }
}

void DeviceGroup::fail_group(ErrorCode code, const std::string& text) const {
  GroupHealth& health = context_.health;
  if (!health.failed()) health.fail(Error(code, health.prefix() + text));
  throw Error(health.failure());
}

void DeviceGroup::connect(milliseconds timeout, bool capturing, const std::string& call) {
  if (connected_) return;
  DevicePeers& peers = *resources_->peers;
  if (capturing) {
    throw Error(ErrorCode::kUnsupported, call + ": the group has not used " + device_name(device_) +
                                             " yet; call once before capture");
  }
  try {
    peers.agree(Deadline(timeout), call);
  } catch (const Error& error) {
    if (peers.refusal()) throw;
    fail_group(error.code(), error.what());
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) resources_->kernels->set_peer(peer, peers.base(peer));
  }
  connected_ = true;
}

void DeviceGroup::connect_peer(int peer, milliseconds timeout, bool capturing,
                               const std::string& call) {
  DevicePeers& peers = *resources_->peers;
  if (peers.base(peer) != nullptr) return;
  if (capturing) {
    throw Error(ErrorCode::kUnsupported, call + ": the group has not used " + device_name(device_) +
                                             " with rank " + std::to_string(peer) +
                                             " yet; call once before capture");
  }
  try {
    peers.map(peer, Deadline(timeout), call);
  } catch (const Error& error) {
    if (peers.problem(peer)) throw;
    fail_group(error.code(), error.what());
  }
  resources_->kernels->set_peer(peer, peers.base(peer));
}

void DeviceGroup::connect_all(milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  check_usable();
  connect(limit(timeout), false, "connect_all");
}

void DeviceGroup::check_backlog() {
  if (const std::optional<Error> error = board_.difference()) {
    context_.health.fail(*error);
    throw Error(context_.health.failure());
  }
}

void DeviceGroup::launch(const CollectiveArgs& args, StreamHandle stream, milliseconds timeout,
                         const PlanRequest& request) {
  const std::lock_guard lock(mutex_);
  check_usable();
  validate_collective(args, rank(), world_size());
  const Choice choice = choose(args, request);
  const bool capturing = runtime_.is_capturing(stream);
  connect(limit(timeout), capturing, std::string(collective_name(args.kind)));
  if (capturing) board_.note_capture();
  CallRecord record = make_record(args, choice.plan, board_.next_sequence());
  if (const std::optional<Found>& found = choice.location()) {
    record.segment = static_cast<std::uint32_t>(found->number + 1);
    record.offset = found->offset;
  }
  board_.post(record, limit(timeout));
  try {
    put(args, choice, {.stream = stream, .timeout = limit(timeout)});
  } catch (const Error& error) {
    // A posted call that cannot be launched leaves the peers waiting: they must learn of it.
    fail_group(error.code(), board_.call_name(record.sequence) + ": " + error.what());
  }
  check_backlog();
}

void DeviceGroup::put(const CollectiveArgs& args, const Choice& choice,
                      const LaunchOptions& options) {
  GroupKernels& kernels = *resources_->kernels;
  if (choice.plan.algorithm == Algorithm::kMultimem) {
    put_multimem(args, choice, options);
  } else if (choice.symmetric_output) {
    const Found& output = *choice.symmetric_output;
    const Segment& segment = *resources_->segments[static_cast<std::size_t>(output.number)].segment;
    for (int r = 0; r < world_size(); ++r) {
      peer_outputs_[static_cast<std::size_t>(r)] = segment.base(r) + output.offset;
    }
    kernels.launch_copies(args, output.location(), peer_outputs_, options);
  } else if (args.kind == CollectiveKind::kAllToAll) {
    put_all_to_all(args, options);
  } else {
    kernels.launch(args, choice.plan, choice.input ? choice.input->location() : 0, options);
  }
}

// `ranks` keeps the addresses while the call is put on a stream.
MulticastMemory DeviceGroup::multicast_memory(const Found& found,
                                              std::vector<std::byte*>& ranks) const {
  const Segment& segment = *resources_->segments[static_cast<std::size_t>(found.number)].segment;
  for (int r = 0; r < world_size(); ++r) {
    ranks[static_cast<std::size_t>(r)] = segment.base(r) + found.offset;
  }
  return {segment.multicast().base() + found.offset, ranks, found.location()};
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

// Empty shares travel as well, so that counts are compared.
void DeviceGroup::put_all_to_all(const CollectiveArgs& args, const LaunchOptions& options) {
  const std::size_t size = dtype_bytes(args.dtype);
  shares_.clear();
  for (int peer = 0; peer < world_size(); ++peer) {
    const Part& out = args.input_parts[static_cast<std::size_t>(peer)];
    const Part& in = args.output_parts[static_cast<std::size_t>(peer)];
    shares_.push_back({.data = out.data, .bytes = out.count * size, .peer = peer, .is_send = true});
    shares_.push_back({.data = in.data, .bytes = in.count * size, .peer = peer, .is_send = false});
  }
  resources_->kernels->transfer(shares_, true, options);
}

SelfMessages DeviceGroup::check_transfer(std::span<const TransferOp> ops) const {
  SelfMessages own(context_.health, rank());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const TransferOp& op = ops[i];
    const std::string name = op.is_send ? "send" : "recv";
    if (op.peer < 0 || op.peer >= world_size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  name + ": expected a group rank from 0 to " + std::to_string(world_size() - 1) +
                      ", got " + std::to_string(op.peer) + " on rank " + std::to_string(rank()));
    }
    if (op.bytes > 0 && op.data == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, name + " with rank " + std::to_string(op.peer) +
                                                   " on rank " + std::to_string(rank()) +
                                                   ": expected memory");
    }
    if (op.peer == rank()) own.add(i, op.is_send, op.tag, op.bytes);
  }
  own.check_all_met();
  return own;
}

// As the kernels want them: a message to oneself as a send and its recv next to each other.
std::span<const TransferOp> DeviceGroup::arranged(std::span<const TransferOp> ops,
                                                  const SelfMessages& own) {
  if (own.pairs().empty()) return ops;
  shares_.clear();
  for (const TransferOp& op : ops) {
    if (op.peer != rank()) shares_.push_back(op);
  }
  for (const SelfMessages::Pair& pair : own.pairs()) {
    shares_.push_back(ops[pair.send]);
    shares_.push_back(ops[pair.recv]);
  }
  return shares_;
}

void DeviceGroup::transfer(std::span<const TransferOp> ops, StreamHandle stream,
                           milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  check_usable();
  const SelfMessages own = check_transfer(ops);
  if (ops.empty()) return;
  const bool capturing = runtime_.is_capturing(stream);
  for (const TransferOp& op : ops) {
    if (op.peer == rank()) continue;
    connect_peer(op.peer, limit(timeout), capturing, op.is_send ? "send" : "recv");
  }
  if (capturing) board_.note_capture();
  for (const TransferOp& op : ops) {
    if (op.peer != rank()) messages_.note(op, tag_channel(op.tag));
  }
  try {
    resources_->kernels->transfer(arranged(ops, own), false,
                                  {.stream = stream, .timeout = limit(timeout)});
  } catch (const Error& error) {
    fail_group(error.code(), std::string("send and recv: ") + error.what());
  }
}

// The abort word makes kernels leave before the failure can be seen, and they report that they did,
// so a report is there whenever something has gone wrong on this rank's device. Kernels of
// different calls may have met and ended all the same: a peer's record was there before its kernel.
void DeviceGroup::check() {
  GroupHealth& health = context_.health;
  if (!health.failed()) [[likely]] {
    if (const std::optional<Error> error = board_.difference(true)) health.fail(*error);
    if (!gave_up() && !health.failed()) [[likely]] {
      return;
    }
  }
  throw_failure();
}

bool DeviceGroup::gave_up() const {
  const std::uint32_t& fault = board_.own_page().report.fault;
  return load_acquire(&fault) != static_cast<std::uint32_t>(DeviceFault::kNone);
}

// The watching thread puts a report into words.
void DeviceGroup::throw_failure() const {
  constexpr milliseconds kPutIntoWords{1'000};
  const GroupHealth& health = context_.health;
  const Deadline deadline(kPutIntoWords);
  while (!health.failed() && !deadline.passed()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (health.failed()) throw Error(health.failure());
  fail_group(ErrorCode::kAborted, "a kernel gave up on " + device_name(device_));
}

void DeviceGroup::set_segment(std::size_t number, std::shared_ptr<Segment> segment,
                              bool symmetric) {
  const std::lock_guard lock(mutex_);
  if (segment && number < static_cast<std::size_t>(kMaxSegments)) {
    resources_->kernels->set_segment(static_cast<int>(number),
                                     {segment->bases(), static_cast<std::size_t>(world_size())});
  }
  if (number >= resources_->segments.size()) resources_->segments.resize(number + 1);
  resources_->segments[number] = {std::move(segment), symmetric};
}

}  // namespace symm
