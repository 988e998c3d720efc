#include "symm_mem/c10d/symmetric_memory.hpp"

#include <chrono>

#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

milliseconds time_limit(const SharedAllocation& shared, std::size_t timeout_ms) {
  return timeout_ms > 0 ? milliseconds(timeout_ms) : shared.link().timeout(shared.device().type());
}

// Runs `on_host(signals, timeout)` to its end, or puts `on_gpu(kernels, pads, options)` on the
// current stream.
template <typename OnHost, typename OnGpu>
void signal(SharedAllocation& shared, int channel, std::size_t timeout_ms, OnHost&& on_host,
            OnGpu&& on_gpu) {
  with_torch_errors([&] {
    shared.link().check_usable();
    if (shared.device().is_cpu()) {
      // The group is asked for its time-out only by a wait that is long.
      const HostSignals::Timeout timeout = [&] { return time_limit(shared, timeout_ms); };
      blocking_call([&] {
        on_host(shared.host_signals(), timeout);
        return true;
      });
      return;
    }
    on_gpu(shared.signal_kernels(), shared.signal_pads(),
           SignalOptions{.stream = current_stream(shared.device()).native_handle(),
                         .channel = channel,
                         .timeout = time_limit(shared, timeout_ms)});
  });
}

}  // namespace

void SymmetricMemoryHandle::check_usable() const { shared_->link().check_usable(); }

std::vector<void*> SymmetricMemoryHandle::get_buffer_ptrs() {
  return with_torch_errors([&] {
    check_usable();
    return shared_->buffer_pointers();
  });
}

std::vector<void*> SymmetricMemoryHandle::get_signal_pad_ptrs() {
  return with_torch_errors([&] {
    check_usable();
    return shared_->pad_pointers();
  });
}

void** SymmetricMemoryHandle::get_buffer_ptrs_dev() {
  return with_torch_errors([&] {
    check_usable();
    return shared_->buffer_table();
  });
}

void** SymmetricMemoryHandle::get_signal_pad_ptrs_dev() {
  return with_torch_errors([&] {
    check_usable();
    return shared_->pad_table();
  });
}

bool SymmetricMemoryHandle::has_multicast_support() {
  return shared_->buffers()->multicast().available();
}

void* SymmetricMemoryHandle::get_multicast_ptr() {
  return with_torch_errors([&]() -> void* {
    check_usable();
    return shared_->buffers()->multicast().base();
  });
}

void SymmetricMemoryHandle::barrier(int channel, std::size_t timeout_ms) {
  signal(
      *shared_, channel, timeout_ms,
      [&](HostSignals& host, const auto& timeout) { host.barrier(channel, timeout); },
      [](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
        gpu.barrier(pads, options);
      });
}

void SymmetricMemoryHandle::put_signal(int dst_rank, int channel, std::size_t timeout_ms) {
  signal(
      *shared_, channel, timeout_ms,
      [&](HostSignals& host, const auto& timeout) { host.put(dst_rank, channel, timeout); },
      [&](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
        gpu.put_signal(pads, dst_rank, options);
      });
}

void SymmetricMemoryHandle::wait_signal(int src_rank, int channel, std::size_t timeout_ms) {
  signal(
      *shared_, channel, timeout_ms,
      [&](HostSignals& host, const auto& timeout) { host.wait(src_rank, channel, timeout); },
      [&](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
        gpu.wait_signal(pads, src_rank, options);
      });
}

const std::vector<int>& SymmetricMemoryHandle::get_rank_to_global_rank() {
  return shared_->link().peers().global_ranks();
}

int* SymmetricMemoryHandle::get_rank_to_global_rank_dev() {
  return with_torch_errors([&] {
    check_usable();
    return shared_->global_rank_table();
  });
}

}  // namespace symm
