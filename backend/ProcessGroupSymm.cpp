#include <symm/ProcessGroupSymm.hpp>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include <symm/memory_provider.hpp>
#include "backend/process_group_impl.hpp"
#include "symm_mem/c10d/cpu_tensor_pool.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {

ProcessGroupSymm::ProcessGroupSymm(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   const c10::intrusive_ptr<Options>& options)
    : c10d::Backend(rank, size),
      impl_(with_torch_errors([&] { return std::make_unique<Impl>(*this, store, options); })) {
  init();
}

ProcessGroupSymm::~ProcessGroupSymm() = default;

// Where a weak reference (Impl::LastSplit) puts off the destructor.
void ProcessGroupSymm::release_resources() { impl_.reset(); }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupSymm::getBackendOptions() {
  return c10::make_intrusive<Options>(*impl_->options_);
}

std::uint64_t ProcessGroupSymm::getSequenceNumberForGroup() { return impl_->sequence_.load(); }

void ProcessGroupSymm::startCoalescing() {
  with_torch_errors([&] { impl_->engine_->check_usable(); });
  std::lock_guard lock(impl_->mutex_);
  // What an earlier block left behind when it ended by an exception is in flight by itself.
  // Its messages are not: they would have started at its end.
  impl_->coalesced_.clear();
  impl_->host_messages_.clear();
  impl_->device_block_.reset();
  impl_->device_messages_.clear();
  impl_->staged_.clear();
  impl_->flight_->begin_block();
  impl_->coalescing_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

ProcessGroupSymm::WorkPtr ProcessGroupSymm::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard lock(impl_->mutex_);
    impl_->coalescing_thread_.store(std::thread::id(), std::memory_order_relaxed);
    works.swap(impl_->coalesced_);
  }
  for (WorkPtr& work : std::exchange(impl_->staged_, {})) works.push_back(std::move(work));
  if (impl_->device_block_ && !works.empty()) {
    works.push_back(with_torch_errors([&]() -> WorkPtr {
      DeviceLauncher::Block block = *std::exchange(impl_->device_block_, std::nullopt);
      impl_->end_device_block(block);
      return block.work;
    }));
  }
  if (impl_->device_block_) {
    return with_torch_errors([&]() -> WorkPtr {
      DeviceLauncher::Block block = *std::exchange(impl_->device_block_, std::nullopt);
      impl_->end_device_block(block);
      return block.work;
    });
  }
  FlightTicket end;
  if (!impl_->host_messages_.empty()) {
    end = impl_->flight_->end_of_block(impl_->sequence_.load(), impl_->engine_->timeout());
    with_torch_errors([&] { impl_->start_messages(std::exchange(impl_->host_messages_, {})); });
  }
  TensorVector outputs;
  for (const WorkPtr& work : works) {
    const Tensors of_work = work->result();
    outputs.append(of_work.begin(), of_work.end());
  }
  return c10::make_intrusive<CoalescedWork>(rank_, impl_->sequence_.load(), std::move(works),
                                            std::move(outputs), end);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupSymm::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  return with_torch_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    impl_->engine_->check_usable();
    const TensorChecks checks("split", rank_, size_, impl_->global_rank());
    for (const int rank : ranks) checks.rank_in_range(rank, "ranks");
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    {
      std::lock_guard lock(impl_->mutex_);
      if (impl_->last_split_ && impl_->last_split_->ranks == ranks &&
          impl_->last_split_->store == c10::weak_intrusive_ptr<c10d::Store>(store)) {
        if (auto again = impl_->last_split_->backend.lock()) return again;
      }
    }
    c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<ProcessGroupSymm>(
        store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
        impl_->options_for(ranks, opts));
    backend->setBoundDeviceId(bound_device_id_);
    std::lock_guard lock(impl_->mutex_);
    impl_->last_split_ = Impl::LastSplit{c10::weak_intrusive_ptr<c10d::Store>(store), ranks,
                                         c10::weak_intrusive_ptr<c10d::Backend>(backend)};
    return backend;
  });
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupSymm::shrink(
    const std::vector<std::int64_t>& excluded, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  constexpr int kShrinkAbort = 1;
  return with_torch_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    const TensorChecks checks("shrink", rank_, size_, impl_->global_rank());
    for (const std::int64_t rank : excluded) checks.rank_in_range(rank, "ranks_to_exclude");
    std::vector<int> left;
    for (int rank = 0; rank < size_; ++rank) {
      if (std::ranges::find(excluded, rank) == excluded.end()) left.push_back(rank);
    }
    const auto mine = std::ranges::find(left, rank_);
    if (mine == left.end()) {
      checks.fail(ErrorCode::kInvalidArgument, {"ranks_to_exclude"},
                  "expected other ranks than the one that calls, got it too");
    }
    if ((flags & kShrinkAbort) != 0) abort();
    const std::vector<std::int64_t> named(left.begin(), left.end());
    auto store =
        c10::make_intrusive<c10d::PrefixStore>("symm/shrunk to " + printed(named), impl_->store_);
    auto shrunk = c10::make_intrusive<ProcessGroupSymm>(
        std::move(store), static_cast<int>(mine - left.begin()), static_cast<int>(left.size()),
        impl_->options_for(left, opts));
    shrunk->setBoundDeviceId(bound_device_id_);
    return shrunk;
  });
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupSymm::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  c10::intrusive_ptr<Options> options = Options::from(opts ? opts : getBackendOptions());
  options->global_ranks_in_group.clear();  // those of the other groups' ranks are not known here
  auto merged = c10::make_intrusive<ProcessGroupSymm>(store, rank, size, options);
  merged->setBoundDeviceId(bound_device_id_);
  return merged;
}

void ProcessGroupSymm::setTimeout(std::chrono::milliseconds timeout) {
  with_torch_errors([&] { impl_->engine_->set_timeout(timeout); });
  impl_->options_->timeout = timeout;
}

void ProcessGroupSymm::registerOnCompletionHook(PendingWorks::Hook&& hook) {
  with_torch_errors([&] {
    impl_->engine_->check_usable();
    impl_->check_one_host("a completion hook");
    // One object, which the base and the pending works share: a copy of Python's needs its lock.
    const auto shared = std::make_shared<PendingWorks::Hook>(std::move(hook));
    const auto call = [shared](PendingWorks::Record record) { (*shared)(std::move(record)); };
    impl_->pending_->set_hook(*shared ? PendingWorks::Hook(call) : nullptr);
    onCompletionHook_ = call;  // hasHooks() looks there
  });
}

void ProcessGroupSymm::waitForPendingWorks() {
  with_torch_errors([&] {
    impl_->engine_->check_usable();
    impl_->check_one_host("waiting for the pending works");
    if (DeviceLauncher* const device = impl_->device_.load(std::memory_order_acquire)) {
      device->await_searches();
      device->mark()->wait(impl_->engine_->timeout());
    }
    impl_->pending_->wait();
  });
}

at::Tensor ProcessGroupSymm::allocateTensor(long size, at::TensorOptions options) {
  return with_torch_errors([&] { return allocate_cpu_tensor(size, options); });
}

std::shared_ptr<c10::Allocator> ProcessGroupSymm::getMemAllocator() {
  return {&cpu_tensor_pool(), [](c10::Allocator*) {}};  // it lives as long as the process
}

void ProcessGroupSymm::suspend() {
  with_torch_errors([&] {
    impl_->engine_->check_usable();
    impl_->check_one_host("suspend()");
    if (impl_->coalescing()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "suspend(): expected a call outside of a coalescing block");
    }
    const DeviceLauncher* const device = impl_->device_.load(std::memory_order_acquire);
    if (device && device->has_searches()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "suspend(): a recv from any rank waits for its sender; wait for it before");
    }
    impl_->engine_->suspend();
  });
}

void ProcessGroupSymm::resume() {
  with_torch_errors([&] { impl_->engine_->resume(); });
}

std::unordered_map<std::string, std::uint64_t> ProcessGroupSymm::getMemoryStats() {
  return with_torch_errors([&] {
    impl_->engine_->check_exists();
    const Communicator::MemoryUse use = impl_->engine_->communicator().memory_use();
    const std::uint64_t total = use.host_bytes + use.device_bytes;
    const std::uint64_t suspendable = use.suspendable_bytes;
    return std::unordered_map<std::string, std::uint64_t>{
        {"suspend", suspendable},
        {"suspended", use.suspended ? 1 : 0},
        {"persist", use.suspended ? total : total - suspendable},
        {"total", total},
        {"host", use.host_bytes},
        {"device", use.device_bytes}};
  });
}

c10d::ErrorType ProcessGroupSymm::getError() {
  const std::optional<Error> failure = impl_->engine_->communicator().failure();
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
  impl_->engine_->abort("abort() was called on this rank");
  forget_segment_user(impl_.get());
}

void ProcessGroupSymm::shutdown() {
  forget_segment_user(impl_.get());
  DeviceLauncher* const device = impl_->device_.load(std::memory_order_acquire);
  if (!device) {
    impl_->engine_->shutdown();
    return;
  }
  blocking_section([&] {
    device->finish(impl_->engine_->timeout());
    GpuHosts* const gpu = impl_->hosts_ ? impl_->hosts_->gpu_if_made() : nullptr;
    if (gpu && !impl_->engine_->communicator().failure()) gpu->shutdown();
    device->leave([this] { impl_->engine_->shutdown(); });
  });
}

}  // namespace symm
