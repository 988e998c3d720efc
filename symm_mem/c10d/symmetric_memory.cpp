#include "symm_mem/c10d/symmetric_memory.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

milliseconds time_limit(const SharedAllocation& shared, std::size_t timeout_ms) {
  if (timeout_ms == 0) return within_longest(shared.link().timeout(shared.device().type()));
  // Before the number becomes a signed one.
  constexpr auto kLongest = static_cast<std::size_t>(kLongestTimeout.count());
  return milliseconds(std::min(timeout_ms, kLongest));
}

// Puts `on_gpu(kernels, pads, options)` on the current stream.
template <typename OnGpu>
void signal_on_gpu(SharedAllocation& shared, int channel, std::size_t timeout_ms, OnGpu&& on_gpu) {
  const c10::Stream stream = current_stream(shared.device());
  const SignalOptions options{.stream = stream.native_handle(),
                              .channel = channel,
                              .timeout = time_limit(shared, timeout_ms)};
  const std::uint64_t capture = gpu_runtime(shared.device()).capture_id(options.stream);
  shared.channel_order().run(stream, capture, channel, [&] {
    on_gpu(shared.signal_kernels(), shared.signal_pads(), options);
  });
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
    try {
      signal_on_gpu(shared, channel, timeout_ms, on_gpu);
    } catch (...) {
      // Where a signal has ended the device's context every call fails; why is what to tell.
      shared.signal_kernels().check();
      throw;
    }
  });
}

class SymmetricMemoryHandle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  SymmetricMemoryHandle(std::shared_ptr<SharedAllocation> shared, std::size_t offset)
      : shared_(std::move(shared)), offset_(offset) {}

  std::vector<void*> get_buffer_ptrs() override { return shared_->buffer_pointers(); }
  std::vector<void*> get_signal_pad_ptrs() override {
    const auto pads = shared_->signal_pads().addresses;
    return {pads.begin(), pads.end()};
  }
  void** get_buffer_ptrs_dev() override { return shared_->buffer_table(); }
  void** get_signal_pad_ptrs_dev() override { return shared_->pad_table(); }
  std::size_t get_buffer_size() override { return shared_->layout().buffer_bytes; }
  // Virtual in some versions of torch, hence without a specifier.
  // NOLINTNEXTLINE(modernize-use-override)
  std::size_t get_signal_pad_size() { return shared_->layout().pad_bytes; }
  std::size_t get_offset() override { return offset_; }

  bool has_multicast_support() override { return multicast().available(); }
  // Null where there is none, which is how PyTorch's programs find out; why_no_multicast() tells.
  void* get_multicast_ptr() override {
    return has_multicast_support() ? multicast().base() : nullptr;
  }

  void barrier(int channel, std::size_t timeout_ms) override {
    signal(
        *shared_, channel, timeout_ms,
        [&](HostSignals& host, const auto& timeout) { host.barrier(channel, timeout); },
        [](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
          gpu.barrier(pads, options);
        });
  }
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override {
    signal(
        *shared_, channel, timeout_ms,
        [&](HostSignals& host, const auto& timeout) { host.put(dst_rank, channel, timeout); },
        [&](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
          gpu.put_signal(pads, dst_rank, options);
        });
  }
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override {
    signal(
        *shared_, channel, timeout_ms,
        [&](HostSignals& host, const auto& timeout) { host.wait(src_rank, channel, timeout); },
        [&](SignalKernels& gpu, const SignalPads& pads, const SignalOptions& options) {
          gpu.wait_signal(pads, src_rank, options);
        });
  }

  int get_rank() override { return shared_->buffers()->rank(); }
  int get_world_size() override { return shared_->buffers()->world_size(); }
  c10::Device get_device() override { return shared_->device(); }
  const std::vector<int>& get_rank_to_global_rank() override {
    return shared_->link().peers().global_ranks();
  }
  int* get_rank_to_global_rank_dev() override { return shared_->global_rank_table(); }
  // Groups are on one host, where every rank maps every other's memory.
  bool world_within_direct_access() override { return true; }

  const Multicast& multicast() const { return shared_->buffers()->multicast(); }
  SharedAllocation& shared() const { return *shared_; }

 private:
  const std::shared_ptr<SharedAllocation> shared_;
  const std::size_t offset_;
};

}  // namespace

c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> make_handle(
    std::shared_ptr<SharedAllocation> shared, std::size_t offset) {
  return c10::make_intrusive<SymmetricMemoryHandle>(std::move(shared), offset);
}

void launch_with_signals(c10d::symmetric_memory::SymmetricMemory& handle, int channel,
                         const GpuLaunch& launch) {
  auto* const ours = dynamic_cast<SymmetricMemoryHandle*>(&handle);
  TORCH_CHECK_NOT_IMPLEMENTED(ours != nullptr && !ours->shared().device().is_cpu(),
                              "expected memory of the provider native on a GPU");
  signal(
      ours->shared(), channel, 0, [](HostSignals&, const auto&) {}, launch);
}

std::string why_no_multicast(const c10d::symmetric_memory::SymmetricMemory& handle) {
  const auto* const ours = dynamic_cast<const SymmetricMemoryHandle*>(&handle);
  return ours == nullptr ? "" : ours->multicast().why_not();
}

}  // namespace symm
