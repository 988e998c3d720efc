#include "backend/engine/communicator.hpp"

#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>

#include "backend/engine/device/device_slot.hpp"
#include "backend/engine/group/call_record.hpp"
#include "backend/engine/group/group_health.hpp"
#include "backend/engine/group/group_memory.hpp"
#include "backend/engine/group/settings.hpp"
#include "backend/engine/group/validation.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/host_collectives.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Ranks that share this host's cores: torchrun says how many of the job there are.
int ranks_on_host(int world_size) {
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return std::max(world_size, local == nullptr ? 0 : std::atoi(local));
}

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

class Communicator::Impl : public CallObserver {
 public:
  Impl(KeyValueStore& store, CommunicatorConfig config);
  ~Impl() override = default;

  void run(const CollectiveArgs& args, milliseconds timeout, const PlanRequest& request);
  Plan plan(const CollectiveArgs& args, const PlanRequest& request, PlanTarget target) const;
  std::shared_ptr<Segment> rendezvous(std::shared_ptr<LocalSegment> local, milliseconds timeout,
                                      bool symmetric);
  void add_segment(std::shared_ptr<Segment> segment, milliseconds timeout);
  void remove_segment(const std::shared_ptr<Segment>& segment);
  void check_usable() const;

  bool keep_waiting(int peer) override;
  bool check_peer(int peer, const std::byte** base, double* factor) override;
  void report_count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) override;

  const CommunicatorConfig& config() const { return config_; }
  GroupHealth& health() const { return *health_; }
  MailboxEngine& mailboxes() const { return *mailbox_engine_; }
  DeviceSlot& device() const { return *device_slot_; }
  std::uint64_t next_sequence() const { return sequence_.load(std::memory_order_relaxed) + 1; }

 private:
  void set_up(KeyValueStore& store);
  void adopt_agreement();
  template <class Value>
  void check_same(const char* name, Value Agreement::*setting,
                  const std::vector<Agreement>& proposals) const;
  void begin_call(const CallRecord& record, milliseconds timeout);
  template <class Make>
  std::shared_ptr<Segment> join_segment(milliseconds timeout, bool symmetric, Make&& make);
  bool verify_record(int peer, std::uint64_t sequence);
  bool verify_backlog();
  template <class Body>
  void run_call(const CallRecord& record, milliseconds timeout, Body&& body);
  const CallRecord& own_record(std::uint64_t sequence) const;
  std::string call_name() const;

  CommunicatorConfig config_;
  Agreement agreement_;
  const std::uint32_t fork_generation_ = fork_generation();
  std::unique_ptr<PeerMesh> mesh_;
  std::unique_ptr<GroupMemory> memory_;
  std::unique_ptr<GroupHealth> health_;
  std::unique_ptr<HostExecutor> executor_;
  std::unique_ptr<MailboxEngine> mailbox_engine_;
  std::unique_ptr<DeviceSlot> device_slot_;

  std::mutex call_mutex_;
  std::atomic<std::uint64_t> sequence_{0};
  std::vector<std::uint64_t> verified_;  // by peer: its calls up to here agree with ours
  Clock::time_point call_start_;
  milliseconds call_timeout_{0};
};

Communicator::Impl::Impl(KeyValueStore& store, CommunicatorConfig config)
    : config_(std::move(config)) {
  check_config(config_);
  if (config_.global_ranks.empty()) {
    config_.global_ranks.resize(static_cast<std::size_t>(config_.world_size));
    std::iota(config_.global_ranks.begin(), config_.global_ranks.end(), 0);
  }
  agreement_ = Agreement::proposed_by(config_, Environment::read());
  selected_isa();  // a wrong SYMM_ISA is an error of set-up
  set_up(store);
  health_ = std::make_unique<GroupHealth>(config_.group_name, config_.rank, config_.global_ranks,
                                          mesh_.get(), memory_.get());
  mailbox_engine_ = std::make_unique<MailboxEngine>(config_, memory_.get(), *health_);
  device_slot_ = std::make_unique<DeviceSlot>(
      DeviceGroupContext{config_, agreement_, *mesh_, memory_.get(), *health_, fork_generation_});
  verified_.resize(static_cast<std::size_t>(config_.world_size));
  if (config_.world_size == 1) return;
  memory_->set_patience({config_.timeout, [this] { return !keep_waiting(config_.rank); }});
  executor_ = std::make_unique<HostExecutor>(memory_->view(),
                                             wait_policy(ranks_on_host(config_.world_size)), *this);
  store_release(&memory_->control(config_.rank).progress.lifecycle,
                static_cast<std::uint32_t>(Lifecycle::kMember));
}

void Communicator::Impl::set_up(KeyValueStore& store) {
  mesh_ = PeerMesh::connect(store, {.group_name = config_.group_name,
                                    .rank = config_.rank,
                                    .world_size = config_.world_size,
                                    .timeout = config_.timeout,
                                    .payload = agreement_.encode()});
  if (config_.world_size == 1) return;
  adopt_agreement();
  memory_ =
      std::make_unique<GroupMemory>(*mesh_, agreement_.workspace_bytes,
                                    GroupMemory::Patience{config_.timeout, [] { return false; }});
}

// The last proposal must say what the first does.
template <class Value>
void Communicator::Impl::check_same(const char* name, Value Agreement::*setting,
                                    const std::vector<Agreement>& proposals) const {
  const Value expected = proposals.front().*setting;
  const Value found = proposals.back().*setting;
  if (found == expected) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": expected the same on every rank of group \"" +
                  config_.group_name + "\", got " + std::to_string(expected) + " on rank 0 and " +
                  std::to_string(found) + " on rank " + std::to_string(proposals.size() - 1));
}

// Every rank sees all proposals, so all come to the same verdict.
void Communicator::Impl::adopt_agreement() {
  std::vector<Agreement> proposals;
  for (int rank = 0; rank < config_.world_size; ++rank) {
    proposals.push_back(rank == config_.rank ? agreement_
                                             : Agreement::decode(mesh_->peer(rank).payload));
    check_same("workspace_bytes", &Agreement::workspace_bytes, proposals);
    check_same("device_workspace_bytes", &Agreement::device_workspace_bytes, proposals);
    check_same("deterministic", &Agreement::deterministic, proposals);
  }
  agreement_ = proposals.front();
}

void Communicator::Impl::check_usable() const {
  if (fork_generation() != fork_generation_) {
    throw Error(ErrorCode::kAborted,
                "group \"" + config_.group_name +
                    "\" belongs to the parent process; a forked child must make its own");
  }
  if (health_->failed()) {
    const Error failure = health_->failure();
    throw Error(failure.code(), failure.what());
  }
}

const CallRecord& Communicator::Impl::own_record(std::uint64_t sequence) const {
  return memory_->control(config_.rank).calls[sequence % kCallRing];
}

std::string Communicator::Impl::call_name() const {
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  return describe_call(own_record(sequence)) + " seq " + std::to_string(sequence);
}

bool Communicator::Impl::keep_waiting(int) {
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  const std::string name = call_name();
  if (!health_->check_peers(sequence, name) || !verify_backlog()) return false;
  const Clock::duration elapsed = Clock::now() - call_start_;
  if (elapsed < call_timeout_) return true;
  health_->fail(Error(ErrorCode::kTimeout, health_->prefix() + name + ": Timed out after " +
                                               seconds(elapsed) + "; " +
                                               health_->attendance(sequence)));
  return false;
}

bool Communicator::Impl::verify_record(int peer, std::uint64_t sequence) {
  const CallRecord& mine = own_record(sequence);
  const CallRecord& theirs = memory_->control(peer).calls[sequence % kCallRing];
  if (same_call(mine, theirs)) return true;
  const std::string message = health_->prefix() + "different calls at seq " +
                              std::to_string(sequence) + ": " + health_->rank_name(config_.rank) +
                              " called " + describe_call(mine) + ", " + health_->rank_name(peer) +
                              " called " + describe_call(theirs);
  health_->fail(Error(ErrorCode::kMismatch, message + describe_difference(mine, theirs)));
  return false;
}

// Compares what peers have entered since they were last looked at: calls in which this rank did
// not wait for them.
bool Communicator::Impl::verify_backlog() {
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  for (int peer = 0; peer < config_.world_size; ++peer) {
    std::uint64_t& verified = verified_[static_cast<std::size_t>(peer)];
    if (peer == config_.rank || verified == sequence) continue;
    const std::uint64_t entered = load_acquire(&memory_->control(peer).progress.entered);
    for (; verified < std::min(entered, sequence); ++verified) {
      if (!verify_record(peer, verified + 1)) return false;
    }
  }
  return true;
}

bool Communicator::Impl::check_peer(int peer, const std::byte** base, double* factor) {
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  std::uint64_t& verified = verified_[static_cast<std::size_t>(peer)];
  for (; verified < sequence; ++verified) {
    if (!verify_record(peer, verified + 1)) return false;
  }
  const CallRecord& theirs = memory_->control(peer).calls[sequence % kCallRing];
  if (theirs.segment != 0) *base = memory_->resolve(peer, theirs.segment, theirs.offset);
  *factor = theirs.factor;
  return true;
}

void Communicator::Impl::report_count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) {
  health_->fail(Error(ErrorCode::kMismatch, health_->prefix() + call_name() + ": " +
                                                health_->rank_name(peer) + " sends " +
                                                std::to_string(theirs) + " elements to " +
                                                health_->rank_name(config_.rank) +
                                                ", which expects " + std::to_string(mine)));
}

void Communicator::Impl::begin_call(const CallRecord& record, milliseconds timeout) {
  ControlRegion& control = memory_->control(config_.rank);
  control.calls[record.sequence % kCallRing] = record;
  sequence_.store(record.sequence, std::memory_order_relaxed);
  store_release(&control.progress.entered, record.sequence);
  call_start_ = Clock::now();
  call_timeout_ = timeout.count() > 0 ? timeout : config_.timeout;
}

// Runs `body`, which returns false or throws when it cannot go on, as the call `record`.
template <class Body>
void Communicator::Impl::run_call(const CallRecord& record, milliseconds timeout, Body&& body) {
  begin_call(record, timeout);
  bool went_well = false;
  try {
    went_well = verify_backlog() && body();
  } catch (const Error& error) {
    // A peer that left because of a failure has told of it: that is the cause.
    if (health_->check_peers(record.sequence, call_name())) {
      health_->fail(Error(error.code(), health_->prefix() + call_name() + ": " + error.what()));
    }
  }
  if (!went_well) throw health_->failure();
  store_release(&memory_->control(config_.rank).progress.completed, record.sequence);
}

// A group of one has the algorithms of two ranks, without a peer.
Plan Communicator::Impl::plan(const CollectiveArgs& args, const PlanRequest& request,
                              PlanTarget target) const {
  validate_request(args.kind, request, target, agreement_, config_.world_size);
  const PlanTable& table =
      target == PlanTarget::kHost ? agreement_.tables.host : agreement_.tables.gpu;
  return table.select(args.kind, std::max(2, config_.world_size),
                      plan_bytes(args, config_.world_size), agreement_.algorithm, request);
}

void Communicator::Impl::run(const CollectiveArgs& args, milliseconds timeout,
                             const PlanRequest& request) {
  validate_collective(args, config_.rank, config_.world_size);
  const Plan plan = this->plan(args, request, PlanTarget::kHost);
  const ReduceKernels* kernels =
      reduces(args.kind) ? &reduce_kernels(args.dtype, args.op, selected_isa()) : nullptr;
  const std::lock_guard lock(call_mutex_);
  check_usable();
  if (config_.world_size == 1) {
    sequence_.fetch_add(1, std::memory_order_relaxed);
    run_alone(args, kernels);
    return;
  }
  CallRecord record = make_record(args, plan, next_sequence());
  const InputArray input = input_array(args, config_.rank, plan.algorithm);
  if (input.data != nullptr && input.bytes > 0) {
    if (const auto place = memory_->find(input.data, input.bytes)) {
      record.segment = place->segment;
      record.offset = place->offset;
    }
  }
  executor_->begin({.element_bytes = dtype_bytes(args.dtype),
                    .kernels = kernels,
                    .factor = args.factor,
                    .in_place = record.segment != 0});
  run_call(record, timeout,
           [&] { return run_collective(*executor_, args, plan, *memory_) && executor_->end(); });
}

// The call in which a segment becomes known: one that `make` makes or has.
template <class Make>
std::shared_ptr<Segment> Communicator::Impl::join_segment(milliseconds timeout, bool symmetric,
                                                          Make&& make) {
  // The barrier brings all ranks here, or tells them apart from ranks that made another call.
  const CollectiveArgs args{};
  const Plan plan = agreement_.tables.host.select(CollectiveKind::kBarrier, config_.world_size, 0,
                                                  Algorithm::kAuto);
  executor_->begin({});
  std::shared_ptr<Segment> segment;
  CallRecord record = make_record(args, plan, next_sequence());
  record.count = symmetric ? kSymmetricRendezvousCount : kRendezvousCount;
  run_call(record, timeout, [&] {
    if (!run_collective(*executor_, args, plan, *memory_) || !executor_->end()) return false;
    segment = make();
    memory_->add_segment(segment);
    device_slot_->add_segment(segment, symmetric);
    return true;
  });
  return segment;
}

std::shared_ptr<Segment> Communicator::Impl::rendezvous(std::shared_ptr<LocalSegment> local,
                                                        milliseconds timeout, bool symmetric) {
  const std::lock_guard lock(call_mutex_);
  check_usable();
  device_slot_->check_segment(*local);
  if (config_.world_size == 1) {
    const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
    return Segment::rendezvous(*mesh_, std::move(local), sequence, config_.timeout,
                               [] { return false; });
  }
  return join_segment(timeout, symmetric, [&] { return memory_->make_segment(std::move(local)); });
}

void Communicator::Impl::add_segment(std::shared_ptr<Segment> segment, milliseconds timeout) {
  const std::lock_guard lock(call_mutex_);
  check_usable();
  device_slot_->check_segment(*segment->local());
  if (config_.world_size == 1) {
    sequence_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  join_segment(timeout, false, [&] { return std::move(segment); });
}

void Communicator::Impl::remove_segment(const std::shared_ptr<Segment>& segment) {
  device_slot_->drain();
  const std::lock_guard lock(call_mutex_);
  if (!memory_) return;
  memory_->remove_segment(segment);
  device_slot_->remove_segment(segment);
}

Communicator::Communicator() = default;

// The last owner may let go inside a completion callback on the mailbox thread, which cannot wait
// for itself: then another thread takes the group apart.
Communicator::~Communicator() {
  if (impl_ == nullptr) return;
  shutdown();
  if (impl_->mailboxes().on_background_thread()) {
    std::thread([impl = std::move(impl_)]() mutable { impl.reset(); }).detach();
  }
}

std::unique_ptr<Communicator> Communicator::create(KeyValueStore& store,
                                                   CommunicatorConfig config) {
  std::unique_ptr<Communicator> communicator(new Communicator());
  communicator->impl_ = std::make_unique<Impl>(store, std::move(config));
  return communicator;
}

int Communicator::rank() const { return impl_->config().rank; }
int Communicator::world_size() const { return impl_->config().world_size; }
const CommunicatorConfig& Communicator::config() const { return impl_->config(); }

void Communicator::run(const CollectiveArgs& args, milliseconds timeout,
                       const PlanRequest& request) {
  impl_->run(args, timeout, request);
}

Plan Communicator::plan(const CollectiveArgs& args, const PlanRequest& request,
                        PlanTarget target) const {
  impl_->check_usable();
  return impl_->plan(args, request, target);
}

void Communicator::validate(const CollectiveArgs& args) const {
  impl_->check_usable();
  validate_collective(args, rank(), world_size());
}

std::uint64_t Communicator::next_sequence() const { return impl_->next_sequence(); }

PointToPoint& Communicator::point_to_point() { return impl_->mailboxes(); }

std::shared_ptr<Segment> Communicator::rendezvous(std::shared_ptr<LocalSegment> local,
                                                  milliseconds timeout, bool symmetric) {
  return impl_->rendezvous(std::move(local), timeout, symmetric);
}

void Communicator::add_segment(std::shared_ptr<Segment> segment, milliseconds timeout) {
  impl_->add_segment(std::move(segment), timeout);
}

void Communicator::remove_segment(const std::shared_ptr<Segment>& segment) {
  impl_->remove_segment(segment);
}

DeviceEngine& Communicator::device_engine(DeviceId device) {
  impl_->check_usable();
  return impl_->device().engine(device);
}

DeviceEngine* Communicator::device_engine_if_made() const {
  return impl_->device().engine_if_made();
}

void Communicator::drain_device() { impl_->device().drain(); }

void Communicator::abort(const std::string& reason) {
  GroupHealth& health = impl_->health();
  health.fail(Error(ErrorCode::kAborted, health.prefix() + "aborted: " + reason));
}

void Communicator::shutdown() {
  impl_->health().leave();
  impl_->mailboxes().stop();
  impl_->device().stop();
}

std::optional<Error> Communicator::failure() const {
  const GroupHealth& health = impl_->health();
  if (!health.failed()) return std::nullopt;
  return health.failure();
}

}  // namespace symm
