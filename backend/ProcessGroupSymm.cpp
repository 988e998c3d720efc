#include "backend/ProcessGroupSymm.hpp"

#include <algorithm>
#include <utility>

#include "backend/profiling.hpp"
#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/memory_provider.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {

namespace {

CommunicatorConfig config_of(const ProcessGroupSymmOptions& options, int rank, int size) {
  CommunicatorConfig config;
  config.group_name = options.group_name.empty() ? "symm" : options.group_name;
  config.rank = rank;
  config.world_size = size;
  config.global_ranks.assign(options.global_ranks_in_group.begin(),
                             options.global_ranks_in_group.end());
  config.timeout = options.timeout;
  config.algorithm = parse_algorithm(options.algorithm(), "the option algorithm");
  config.workspace_bytes = options.workspace_bytes();
  config.device_workspace_bytes = options.device_workspace_bytes();
  config.deterministic = options.deterministic;
  config.high_priority = options.is_high_priority_stream;
  return config;
}

class QueuedCollective final : public AsyncTask {
 public:
  explicit QueuedCollective(c10::intrusive_ptr<CollectiveWork> work) : work_(std::move(work)) {}
  void run() noexcept override { work_->run(); }
  void cancel(const Error& reason) noexcept override { work_->cancel(reason); }

 private:
  c10::intrusive_ptr<CollectiveWork> work_;
};

}  // namespace

ProcessGroupSymm::ProcessGroupSymm(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   const c10::intrusive_ptr<Options>& options)
    : c10d::Backend(rank, size), options_(Options::from(options)) {
  init();
  with_torch_errors([&] {
    if (size < 1 || rank < 0 || rank >= size) {
      throw Error(ErrorCode::kInvalidArgument, "rank: expected 0 to size - 1, got rank " +
                                                   std::to_string(rank) + " of size " +
                                                   std::to_string(size));
    }
    options_->validate(size);
    static_cast<void>(memory_provider());  // throws for a wrong SYMM_MEMORY_PROVIDER
    C10dStore adapter(store);
    engine_ = GroupEngine::create(adapter, config_of(*options_, rank, size));
  });
}

ProcessGroupSymm::~ProcessGroupSymm() {
  close_links_of(this);
  if (!device_launcher_) return;
  blocking_section([this] { device_launcher_->leave([this] { engine_->interrupt(); }); });
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupSymm::getBackendOptions() {
  return c10::make_intrusive<Options>(*options_);
}

CallBatch ProcessGroupSymm::one(CollectiveCall call) const {
  CallBatch calls;
  calls.push_back(std::move(call));
  return calls;
}

ProcessGroupSymm::WorkPtr ProcessGroupSymm::issue(c10d::OpType type, const char* title,
                                                  CallBatch calls, Milliseconds timeout,
                                                  bool async_op) {
  engine_->check_usable();
  const Milliseconds limit = engine_->timeout(timeout);
  if (!calls.empty() && calls.front().device.is_cuda()) {
    return issue_on_device(type, profiled(title), std::move(calls), limit, async_op);
  }
  if (!async_op && !coalescing() && engine_->may_run_inline()) {
    return run_inline(type, profiled(title), calls, limit);
  }
  check_block(at::kCPU);
  WorkPtr work = enqueue(type, profiled(title), std::move(calls), limit);
  if (coalescing()) {
    add_coalesced(work);
  } else if (!async_op) {
    work->wait();
  }
  return work;
}

ProcessGroupSymm::WorkPtr ProcessGroupSymm::run_inline(c10d::OpType type, const char* title,
                                                       const CallBatch& calls,
                                                       Milliseconds timeout) {
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<WorkSymm>(rank_, type, title, sequence, outputs_of(calls));
  try {
    for (const CollectiveCall& call : calls) {
      run_on_host(call, engine_->communicator(), timeout);
    }
  } catch (const Error& error) {
    // A refused call was never made, so it has no number.
    if (is_refusal(error)) sequence_.fetch_sub(1, std::memory_order_relaxed);
    work->finish_at_birth();
    throw;
  }
  work->finish_at_birth();
  return work;
}

ProcessGroupSymm::WorkPtr ProcessGroupSymm::enqueue(c10d::OpType type, const char* title,
                                                    CallBatch calls, Milliseconds timeout) {
  for (const CollectiveCall& call : calls) engine_->communicator().validate(call.args);
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<CollectiveWork>(rank_, type, title, sequence, std::move(calls),
                                                  engine_->shared_communicator(), timeout);
  engine_->queue().post(std::make_unique<QueuedCollective>(work));
  return work;
}

void ProcessGroupSymm::startCoalescing() {
  with_torch_errors([&] { engine_->check_usable(); });
  std::lock_guard lock(mutex_);
  // What an earlier block left behind when it ended by an exception is in flight by itself.
  // Its messages are not: they would have started at its end.
  coalesced_.clear();
  host_messages_.clear();
  device_block_.reset();
  coalescing_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void ProcessGroupSymm::check_block(at::Device device) {
  if (!coalescing()) return;
  std::lock_guard lock(mutex_);
  if (device.is_cpu() ? device_block_.has_value() : !coalesced_.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "a coalescing block is for calls on one device: got one on " + device.str() +
                    " after one on " +
                    (device.is_cpu() ? device_launcher_->device().str() : "cpu"));
  }
}

void ProcessGroupSymm::add_coalesced(const WorkPtr& work) {
  std::lock_guard lock(mutex_);
  coalesced_.push_back(work);
}

ProcessGroupSymm::WorkPtr ProcessGroupSymm::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard lock(mutex_);
    coalescing_thread_.store(std::thread::id(), std::memory_order_relaxed);
    works.swap(coalesced_);
  }
  if (device_block_) {
    return with_torch_errors([&]() -> WorkPtr {
      DeviceLauncher::Block block = *std::exchange(device_block_, std::nullopt);
      device_launcher_->end(block, engine_->timeout(Milliseconds(0)));
      return block.work;
    });
  }
  if (!host_messages_.empty()) {
    with_torch_errors([&] { start_messages(std::exchange(host_messages_, {})); });
  }
  TensorVector outputs;
  for (const WorkPtr& work : works) {
    const Tensors of_work = work->result();
    outputs.append(of_work.begin(), of_work.end());
  }
  return c10::make_intrusive<CoalescedWork>(rank_, sequence_.load(), std::move(works),
                                            std::move(outputs));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupSymm::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  return with_torch_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    engine_->check_usable();
    const TensorChecks checks("split", rank_, size_);
    for (const int rank : ranks) checks.rank_in_range(rank, "ranks");
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    {
      std::lock_guard lock(mutex_);
      if (last_split_ && last_split_->ranks == ranks &&
          last_split_->store == c10::weak_intrusive_ptr<c10d::Store>(store)) {
        if (auto again = last_split_->backend.lock()) return again;
      }
    }
    c10::intrusive_ptr<Options> options = Options::from(opts ? opts : getBackendOptions());
    options->global_ranks_in_group.clear();
    for (const int rank : ranks) {
      const std::vector<std::uint64_t>& global = options_->global_ranks_in_group;
      options->global_ranks_in_group.push_back(global.empty() ? static_cast<std::uint64_t>(rank)
                                                              : global[rank]);
    }
    c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<ProcessGroupSymm>(
        store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), options);
    backend->setBoundDeviceId(bound_device_id_);
    std::lock_guard lock(mutex_);
    last_split_ = LastSplit{c10::weak_intrusive_ptr<c10d::Store>(store), ranks,
                            c10::weak_intrusive_ptr<c10d::Backend>(backend)};
    return backend;
  });
}

void ProcessGroupSymm::setTimeout(std::chrono::milliseconds timeout) {
  with_torch_errors([&] { engine_->set_timeout(timeout); });
  options_->timeout = timeout;
}

c10d::ErrorType ProcessGroupSymm::getError() {
  const std::optional<Error> failure = engine_->communicator().failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->code()) {
    case ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerLost:
    case ErrorCode::kPeerLeft:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupSymm::abort() {
  engine_->abort("abort() was called on this rank");
  close_links_of(this);
}

void ProcessGroupSymm::shutdown() {
  close_links_of(this);
  DeviceLauncher* const device = device_.load(std::memory_order_acquire);
  if (!device) {
    engine_->shutdown();
    return;
  }
  blocking_section([&] {
    device->finish(engine_->timeout(Milliseconds(0)));
    device->leave([this] { engine_->shutdown(); });
  });
}

}  // namespace symm
