#include "kernels/gpu/launch/gpu_kernels.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm {

namespace {

constexpr std::uint64_t kAllRanks = ~std::uint64_t{0};
static_assert(kMaxDeviceRanks <= 64, "SignalPage::gone has a bit for each rank");

const char* operation_name(SignalOperation operation) {
  constexpr const char* kNames[] = {"barrier", "put_signal", "wait_signal"};
  return kNames[static_cast<std::size_t>(operation)];
}

class GpuSignalKernels final : public SignalKernels {
 public:
  GpuSignalKernels(const SignalKernelsConfig& config, int device_index,
                   std::shared_ptr<SignalState> state)
      : config_(config),
        device_(device_index),
        resources_(std::make_unique<Resources>(std::move(state))) {
    load_kernel(signal_kernel_address());
  }
  ~GpuSignalKernels() override;

  void barrier(const SignalPads& pads, const SignalOptions& options) override {
    launch(SignalOperation::kBarrier, pads, 0, options);
  }
  void put_signal(const SignalPads& pads, int destination, const SignalOptions& options) override {
    launch(SignalOperation::kPutSignal, pads, destination, options);
  }
  void wait_signal(const SignalPads& pads, int source, const SignalOptions& options) override {
    launch(SignalOperation::kWaitSignal, pads, source, options);
  }

  void abort(const Error& reason) noexcept override { lose(kAllRanks, reason); }
  void lose(std::uint64_t ranks, const Error& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!lost_reason_) lost_reason_ = reason;
    std::uint64_t& gone = resources_->page.gone;
    store_release(&gone, load_relaxed(&gone) | ranks);
  }
  void check() const override;

 private:
  // Memory that kernels use; leaked where the device cannot be waited for.
  struct Resources {
    explicit Resources(std::shared_ptr<SignalState> device_state)
        : state(std::move(device_state)) {}
    std::shared_ptr<SignalState> state;
    SignalPage page{};
    MappedMemory mapping{&page, sizeof(page), "mapping the page of host memory of signal kernels"};
  };

  void validate(SignalOperation operation, const SignalPads& pads, int peer,
                const SignalOptions& options) const;
  void launch(SignalOperation operation, const SignalPads& pads, int peer,
              const SignalOptions& options) const;
  std::string timeout_message(const SignalPage::Report& report) const;

  const SignalKernelsConfig config_;
  const int device_;
  std::unique_ptr<Resources> resources_;
  mutable std::mutex mutex_;
  std::optional<Error> lost_reason_;
};

GpuSignalKernels::~GpuSignalKernels() {
  store_release(&resources_->page.gone, kAllRanks);
  try {
    const DeviceGuard guard(device_);
    gpuStreamCaptureMode mode = gpuStreamCaptureModeRelaxed;
    check_gpu(gpuThreadExchangeStreamCaptureMode(&mode), "leaving a capture's rules");
    const gpuError_t status = gpuDeviceSynchronize();
    (void)gpuThreadExchangeStreamCaptureMode(&mode);
    check_gpu(status, "waiting for signal kernels");
    resources_.reset();
  } catch (const Error&) {
    [[maybe_unused]] const Resources* leaked = resources_.release();
  }
}

void GpuSignalKernels::validate(SignalOperation operation, const SignalPads& pads, int peer,
                                const SignalOptions& options) const {
  const char* const name = operation_name(operation);
  if (pads.addresses.size() != static_cast<std::size_t>(config_.world_size)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": expected the signal pads of " +
                                                 std::to_string(config_.world_size) +
                                                 " ranks, got " +
                                                 std::to_string(pads.addresses.size()));
  }
  check_signal_channel(name, pads.bytes, config_.world_size, options.channel);
  check_signal_rank(name, config_.world_size, peer);
  if (options.timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) +
                                                 ": the time-out must not be negative, got " +
                                                 std::to_string(options.timeout.count()) + " ns");
  }
}

void GpuSignalKernels::launch(SignalOperation operation, const SignalPads& pads, int peer,
                              const SignalOptions& options) const {
  validate(operation, pads, peer, options);
  check();
  const bool is_barrier = operation == SignalOperation::kBarrier;
  if (is_barrier && config_.world_size == 1) return;
  SignalParams params{};
  params.operation = operation;
  params.rank = config_.rank;
  params.world_size = config_.world_size;
  params.peer = peer;
  params.channel = options.channel;
  params.poll_period = config_.poll_period;
  params.timeout_ns = static_cast<std::uint64_t>(options.timeout.count());
  params.page = static_cast<SignalPage*>(resources_->mapping.device_address());
  params.state = resources_->state.get();
  std::transform(pads.addresses.begin(), pads.addresses.end(), params.pads,
                 [](std::byte* pad) { return reinterpret_cast<SignalSlot*>(pad); });
  void* arguments[] = {&params};
  const DeviceGuard guard(device_);
  check_gpu(gpuLaunchKernel(signal_kernel_address(), dim3(1),
                            dim3(is_barrier ? static_cast<unsigned>(config_.world_size) : 1),
                            arguments, 0, static_cast<gpuStream_t>(options.stream)),
            "launching a signal kernel");
}

void GpuSignalKernels::check() const {
  const SignalPage::Report& report = resources_->page.report;
  const auto fault = static_cast<DeviceFault>(load_acquire(&report.fault));
  if (fault == DeviceFault::kTimeout) throw Error(ErrorCode::kTimeout, timeout_message(report));
  if (fault == DeviceFault::kPeerGaveUp) {
    throw Error(ErrorCode::kPeerLost, operation_name(report.operation), " on channel ",
                report.channel, ": rank ", report.peer,
                " has given up a barrier on this channel; use another channel or new memory");
  }
  const std::lock_guard lock(mutex_);
  if (lost_reason_) throw *lost_reason_;
}

std::string GpuSignalKernels::timeout_message(const SignalPage::Report& report) const {
  const auto name = [this](int rank) {
    return config_.rank_name ? config_.rank_name(rank) : "rank " + std::to_string(rank);
  };
  return std::string(operation_name(report.operation)) + " on channel " +
         std::to_string(report.channel) + ": Timed out after " +
         std::to_string(report.timeout_ns / 1'000'000) + " ms: " + name(config_.rank) +
         " waited for " + name(report.peer) +
         (report.putting != 0 ? " to take the signal before" : ", whose signal did not come");
}

}  // namespace

std::unique_ptr<SignalKernels> make_gpu_signal_kernels(const SignalKernelsConfig& config,
                                                       int device_index,
                                                       std::shared_ptr<SignalState> state) {
  if (config.world_size < 1 || config.world_size > kMaxDeviceRanks) {
    throw Error(ErrorCode::kInvalidArgument, "signal kernels: expected a group of 1 to " +
                                                 std::to_string(kMaxDeviceRanks) + " ranks, got " +
                                                 std::to_string(config.world_size));
  }
  const DeviceGuard guard(device_index);
  return std::make_unique<GpuSignalKernels>(config, device_index, std::move(state));
}

}  // namespace symm
