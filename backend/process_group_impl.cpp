#include "backend/process_group_impl.hpp"

#include <c10/util/Logging.h>

#include <symm/memory_provider.hpp>

#include "backend/engine/group/settings.hpp"
#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {

using WorkPtr = ProcessGroupSymm::WorkPtr;

namespace {

std::string name_of(const ProcessGroupSymmOptions& options) {
  return options.group_name.empty() ? "symm" : options.group_name;
}

std::vector<std::int64_t> global_ranks_of(const ProcessGroupSymmOptions& options, int size) {
  const std::vector<std::uint64_t>& given = options.global_ranks_in_group;
  std::vector<std::int64_t> ranks(given.begin(), given.end());
  for (int rank = 0; ranks.size() < static_cast<std::size_t>(size); ++rank) ranks.push_back(rank);
  return ranks;
}

CommunicatorConfig config_of(const ProcessGroupSymmOptions& options, int rank, int size) {
  CommunicatorConfig config;
  config.group_name = name_of(options);
  config.rank = rank;
  config.world_size = size;
  config.global_ranks.assign(options.global_ranks_in_group.begin(),
                             options.global_ranks_in_group.end());
  config.timeout = options.timeout;
  config.algorithm = parse_algorithm(options.algorithm(), "the option algorithm");
  config.workspace_bytes = options.workspace_bytes();
  config.device_workspace_bytes = options.device_workspace_bytes();
  config.max_device_blocks = options.max_device_blocks();
  config.deterministic = options.deterministic;
  config.high_priority = options.is_high_priority_stream;
  return config;
}

}  // namespace

ProcessGroupSymm::Impl::Impl(const ProcessGroupSymm& group,
                             const c10::intrusive_ptr<c10d::Store>& store,
                             const c10::intrusive_ptr<Options>& options)
    : SegmentUser(group),
      group_(group),
      rank_(group.rank_),
      size_(group.size_),
      options_(Options::from(options)),
      store_(store),
      nan_check_("group \"" + name_of(*options_) + "\"", nan_check_in_environment()),
      returns_work_(return_work_in_environment()) {
  if (size_ < 1 || rank_ < 0 || rank_ >= size_) {
    throw Error(ErrorCode::kInvalidArgument, "rank: expected 0 to size - 1, got rank " +
                                                 std::to_string(rank_) + " of size " +
                                                 std::to_string(size_));
  }
  options_->validate(size_);
  static_cast<void>(memory_provider());  // throws for a wrong SYMM_MEMORY_PROVIDER
  const std::vector<std::int64_t> ranks = global_ranks_of(*options_, size_);
  flight_ = std::make_unique<GroupFlight>(group, name_of(*options_), rank_, ranks);
  profiled_.emplace(group, ranks);
  audit_ = CallAudit::of_group(name_of(*options_), rank_, ranks);
  // The ends of their ranks say nothing about this group.
  drop_links_of_destroyed_groups();
  C10dStore adapter(store);
  const CommunicatorConfig config = config_of(*options_, rank_, size_);
  try {
    engine_ = GroupEngine::create(adapter, config);
  } catch (const SpansHosts& found) {
    hosts_ = std::make_shared<HostGroup>(store, config, options_->inter_host(), found);
    engine_ = hosts_->engine();
  }
  pending_ = std::make_shared<PendingWorks>(engine_->completion_hooks());
  flight_->write_when_failed(*engine_->communicator().local_group());
  LOG(INFO) << text_of(
      "symm: group \"", name_of(*options_), "\": ", RankNames(ranks).name(rank_), " of ", size_,
      ", global ranks ", printed(ranks), hosts_ ? ", over " + hosts_->description() : "",
      ", algorithm ", options_->algorithm(), ", ", options_->workspace_bytes(),
      " bytes of staging memory a rank on the CPU and ", options_->device_workspace_bytes(),
      " on a GPU, time-out ", options_->timeout.count(), " ms");
}

c10::intrusive_ptr<ProcessGroupSymmOptions> ProcessGroupSymm::Impl::options_for(
    const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  auto options = given ? Options::from(given) : c10::make_intrusive<Options>(*options_);
  const std::vector<std::uint64_t>& global = options_->global_ranks_in_group;
  options->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    options->global_ranks_in_group.push_back(global.empty() ? static_cast<std::uint64_t>(rank)
                                                            : global[rank]);
  }
  return options;
}

ProcessGroupSymm::Impl::~Impl() {
  forget_segment_user(this);
  if (!device_launcher_) return;
  blocking_section([this] { device_launcher_->leave([this] { engine_->interrupt(); }); });
  flight_->forget_counters();
}

void ProcessGroupSymm::Impl::check_one_host(const char* what) const {
  if (!hosts_) return;
  throw Error(ErrorCode::kUnsupported, "group \"", name_of(*options_), "\" is over several hosts (",
              hosts_->layout().text(), "): ", what,
              " needs ranks of one host; use a group of those of a host");
}

WorkPtr ProcessGroupSymm::Impl::issue(const Operation& operation, CallBatch&& calls,
                                      Milliseconds timeout, bool async_op) {
  engine_->check_usable();
  const Milliseconds limit = engine_->timeout(timeout);
  if (audit_) [[unlikely]] {
    for (CollectiveCall& call : calls) call.audit = audit_;
  }
  if (hosts_) [[unlikely]] {
    for (CollectiveCall& call : calls) {
      if (!call.request.empty()) check_one_host("a collective with a plan of its own");
      call.hosts = hosts_;
    }
  }
  const Operation watched = operation.watched();
  if (watched.title != nullptr) [[unlikely]] {
    const ProfiledCall call =
        ProfiledCall::collective(operation.type, calls, rank_, sequence_.load() + 1, async_op);
    return profiled_->record(call, [&] { return put(watched, std::move(calls), limit, async_op); });
  }
  return put(watched, std::move(calls), limit, async_op);
}

WorkPtr ProcessGroupSymm::Impl::put(const Operation& operation, CallBatch&& calls,
                                    Milliseconds limit, bool async_op) {
  if (!calls.empty() && calls.front().device.is_cuda()) {
    return issue_on_device(operation, calls, limit, async_op);
  }
  if (!async_op && !coalescing() && engine_->may_run_inline()) {
    return run_inline(operation, calls, limit);
  }
  check_block(at::kCPU);
  WorkPtr work = enqueue(operation, std::move(calls), limit);
  if (coalescing()) {
    add_coalesced(work);
  } else if (!async_op) {
    work->wait();
    if (!gives_work(operation)) return nullptr;
  }
  return work;
}

WorkPtr ProcessGroupSymm::Impl::run_inline(const Operation& operation, const CallBatch& calls,
                                           Milliseconds timeout) {
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  c10::intrusive_ptr<WorkSymm> work;
  if (gives_work(operation)) [[unlikely]] {
    work =
        c10::make_intrusive<WorkSymm>(rank_, operation.type, operation.title, sequence,
                                      outputs_of(calls), profiled_inputs(operation.title, calls));
    if (pending_->has_hook()) work->pend_in(pending_);
  }
  const FlightTicket ticket = flight_->collective(operation.type, calls, sequence, timeout, true);
  try {
    for (const CollectiveCall& call : calls) {
      run_on_host(call, engine_->communicator(), timeout);
    }
  } catch (const Error& error) {
    // A refused call was never made, so it has no number.
    if (is_refusal(error)) {
      sequence_.fetch_sub(1, std::memory_order_relaxed);
      ticket.discard();
      if (work) work->pend_no_more();
    }
    ticket.ended(false);  // unless it was discarded
    if (work) work->finish_at_birth();
    throw;
  } catch (...) {  // of torch's own operations, which a sparse tensor needs
    ticket.ended(false);
    if (work) work->finish_at_birth();
    throw;
  }
  ticket.ended(true);
  if (work) work->finish_at_birth();
  return work;
}

WorkPtr ProcessGroupSymm::Impl::enqueue(const Operation& operation, CallBatch&& calls,
                                        Milliseconds timeout) {
  for (const CollectiveCall& call : calls) validate(call.args);
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<CollectiveWork>(rank_, operation.type, operation.title, sequence,
                                                  std::move(calls), engine_->shared_communicator(),
                                                  timeout);
  work->record_as(flight_->collective(operation.type, work->calls(), sequence, timeout, false));
  work->pend_in(pending_);
  AsyncQueue& queue = engine_->queue();
  const AsyncQueue::Task task = [work](const Error* stopped) { work->run(stopped); };
  if (!queue.run_here(task)) queue.post(task, work.get(), timeout);
  return work;
}

void ProcessGroupSymm::Impl::check_block(at::Device device) {
  if (!coalescing()) return;
  std::lock_guard lock(mutex_);
  if (device.is_cpu() ? device_block_.has_value() : !coalesced_.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "a coalescing block is for calls on one device: got one on " + device.str() +
                    " after one on " +
                    (device.is_cpu() ? device_launcher_->device().str() : "cpu"));
  }
}

void ProcessGroupSymm::Impl::add_coalesced(const WorkPtr& work) {
  std::lock_guard lock(mutex_);
  coalesced_.push_back(work);
}

std::shared_ptr<LocalGroup> ProcessGroupSymm::Impl::local_group() {
  with_torch_errors([&] { check_one_host("symmetric memory"); });
  engine_->check_usable();
  return engine_->communicator().local_group();
}

TableRows ProcessGroupSymm::Impl::free_rows() {
  return engine_->communicator().local_group()->segments().free_rows();
}

void ProcessGroupSymm::Impl::prepare_segment(const Segment& segment) {
  engine_->check_usable();
  engine_->communicator().prepare_segment(segment);
  if (!segment.is_on_host()) {
    const int index = static_cast<GpuRuntime&>(segment.local()->runtime()).identity().index;
    device_launcher(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
  }
}

// What is queued must not find the segment yet: peers may carry it out before they know it.
void ProcessGroupSymm::Impl::add_segment(const std::shared_ptr<Segment>& segment, bool symmetric) {
  engine_->queue().drain();
  engine_->communicator().add_segment(segment, symmetric);
}

void ProcessGroupSymm::Impl::set_symmetric(const std::shared_ptr<Segment>& segment) {
  engine_->queue().drain();
  engine_->communicator().set_symmetric(segment);
}

void ProcessGroupSymm::Impl::remove_segment(const std::shared_ptr<Segment>& segment) {
  engine_->queue().drain();
  engine_->communicator().remove_segment(segment);
}

}  // namespace symm
