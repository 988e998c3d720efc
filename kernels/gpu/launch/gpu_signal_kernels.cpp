#include "kernels/gpu/launch/gpu_kernels.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/row_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm {

namespace {

constexpr std::uint64_t kAllRanks = ~std::uint64_t{0};
static_assert(kMaxDeviceRanks <= 64, "SignalPage::gone has a bit for each rank");

// Blocks of a row exchange: with 32 a GPU pulls as much as with more, and each holds 2 KiB of every
// warp under way.
constexpr std::uint64_t kMostMoveBlocks = 32;
constexpr std::uint64_t kLeastOfMoveBlock = 32 << 10;
// And of a sum of matrices, whose threads have a unit of four ranks under way each.
constexpr std::uint64_t kMostMatrixSumBlocks = 64;
constexpr std::uint64_t kUnitBytes = 16;

const char* operation_name(SignalOperation operation) {
  constexpr const char* kNames[] = {"barrier", "put_signal", "wait_signal", "all_to_all_vdev"};
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
    load_kernel(plan_rows_kernel_address());
    load_kernel(move_rows_kernel_address());
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      if (!op_supports(ReduceOp::kSum, static_cast<Dtype>(dtype))) continue;
      load_kernel(matrix_sum_kernel_address(static_cast<Dtype>(dtype)));
    }
  }
  ~GpuSignalKernels() override;

  void barrier(const SignalPads& pads, const SignalOptions& options) override {
    signal(SignalOperation::kBarrier, pads, 0, options);
  }
  void put_signal(const SignalPads& pads, int destination, const SignalOptions& options) override {
    signal(SignalOperation::kPutSignal, pads, destination, options);
  }
  void wait_signal(const SignalPads& pads, int source, const SignalOptions& options) override {
    signal(SignalOperation::kWaitSignal, pads, source, options);
  }
  void exchange_rows(const SignalPads& pads, const RowExchange& exchange,
                     const SignalOptions& options) override;
  void sum_matrices(Dtype dtype, const MatrixPart& part, std::span<std::byte* const> inputs,
                    std::byte* output, const SignalOptions& options) override;
  std::size_t scratch_words(std::int32_t experts) const override {
    return row_scratch_words({.form = RowExchangeForm::kVector,
                              .world_size = config_.world_size,
                              .experts = experts,
                              .major_align = 0,
                              .input_rows = 0,
                              .output_rows = 0});
  }

  void abort(const Error& reason) noexcept override { lose(kAllRanks, reason); }
  void lose(std::uint64_t ranks, const Error& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!lost_reason_) lost_reason_ = reason;
    SignalPage& page = resources_->page;
    const bool lost =
        reason.code() == ErrorCode::kPeerLost || reason.code() == ErrorCode::kPeerLeft;
    store_relaxed(&page.lost, std::uint32_t{lost});
    store_release(&page.gone, load_relaxed(&page.gone) | ranks);
  }
  void check() const override;
  bool gave_up() const noexcept override {
    return load_acquire(&resources_->page.report.fault) !=
           static_cast<std::uint32_t>(DeviceFault::kNone);
  }

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
  // What a kernel that uses no pads gets; throws what check() does.
  SignalParams params_of(SignalOperation operation, const SignalOptions& options) const;
  SignalParams params_of(SignalOperation operation, const SignalPads& pads, int peer,
                         const SignalOptions& options) const;
  void signal(SignalOperation operation, const SignalPads& pads, int peer,
              const SignalOptions& options) const;
  std::string timeout_message(const SignalPage::Report& report) const;

  const SignalKernelsConfig config_;
  const int device_;
  std::unique_ptr<Resources> resources_;
  mutable std::mutex mutex_;
  std::optional<Error> lost_reason_;
};

GpuSignalKernels::~GpuSignalKernels() {
  store_relaxed(&resources_->page.lost, std::uint32_t{0});
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

SignalParams GpuSignalKernels::params_of(SignalOperation operation,
                                         const SignalOptions& options) const {
  check();
  SignalParams params{};
  params.operation = operation;
  params.rank = config_.rank;
  params.world_size = config_.world_size;
  params.channel = options.channel;
  params.poll_period = config_.poll_period;
  params.traps = config_.traps ? 1 : 0;
  params.timeout_ns = static_cast<std::uint64_t>(options.timeout.count());
  params.page = static_cast<SignalPage*>(resources_->mapping.device_address());
  params.state = resources_->state.get();
  return params;
}

SignalParams GpuSignalKernels::params_of(SignalOperation operation, const SignalPads& pads,
                                         int peer, const SignalOptions& options) const {
  validate(operation, pads, peer, options);
  SignalParams params = params_of(operation, options);
  params.peer = peer;
  std::transform(pads.addresses.begin(), pads.addresses.end(), params.pads,
                 [](std::byte* pad) { return reinterpret_cast<SignalSlot*>(pad); });
  return params;
}

void GpuSignalKernels::signal(SignalOperation operation, const SignalPads& pads, int peer,
                              const SignalOptions& options) const {
  const SignalParams params = params_of(operation, pads, peer, options);
  const bool is_barrier = operation == SignalOperation::kBarrier;
  if (is_barrier && config_.world_size == 1) return;
  const DeviceGuard guard(device_);
  launch_kernel(signal_kernel_address(), 1,
                is_barrier ? static_cast<unsigned>(config_.world_size) : 1, options.stream, params);
}

void GpuSignalKernels::exchange_rows(const SignalPads& pads, const RowExchange& exchange,
                                     const SignalOptions& options) {
  const SignalParams params = params_of(SignalOperation::kExchangeRows, pads, 0, options);
  const auto world = static_cast<std::size_t>(config_.world_size);
  if (exchange.inputs.size() != world || exchange.splits.size() != world) {
    throw Error(ErrorCode::kInvalidArgument, row_exchange_name(exchange.form),
                ": expected the inputs and splits of ", world, " ranks, got ",
                exchange.inputs.size(), " and ", exchange.splits.size());
  }
  const std::uint64_t most = std::numeric_limits<std::int32_t>::max() / (world * world);
  if (exchange.experts < 1 || static_cast<std::uint64_t>(exchange.experts) > most) {
    throw Error(ErrorCode::kInvalidArgument, row_exchange_name(exchange.form), ": expected 1 to ",
                most, " experts a rank, got ", exchange.experts);
  }
  RowParams rows{};
  rows.shape = {.form = exchange.form,
                .world_size = config_.world_size,
                .experts = exchange.experts,
                .major_align = exchange.major_align,
                .input_rows = exchange.input_rows,
                .output_rows = exchange.output_rows};
  rows.row_bytes = exchange.row_bytes;
  rows.output = exchange.output;
  rows.results = exchange.results;
  rows.scratch = exchange.scratch;
  std::copy(exchange.inputs.begin(), exchange.inputs.end(), rows.inputs);
  std::transform(exchange.splits.begin(), exchange.splits.end(), rows.splits,
                 [](std::byte* splits) { return reinterpret_cast<const std::int64_t*>(splits); });
  const std::uint64_t most_bytes =
      static_cast<std::uint64_t>(exchange.output_rows) * exchange.row_bytes;
  const auto blocks = static_cast<unsigned>(
      std::clamp(most_bytes / kLeastOfMoveBlock, std::uint64_t{1}, kMostMoveBlocks));
  const DeviceGuard guard(device_);
  launch_kernel(plan_rows_kernel_address(), 1, kPlanRowsThreads, options.stream, params, rows);
  launch_kernel(move_rows_kernel_address(), blocks, kMoveRowsThreads, options.stream, params, rows);
}

void GpuSignalKernels::sum_matrices(Dtype dtype, const MatrixPart& part,
                                    std::span<std::byte* const> inputs, std::byte* output,
                                    const SignalOptions& options) {
  if (!op_supports(ReduceOp::kSum, dtype) ||
      inputs.size() != static_cast<std::size_t>(config_.world_size)) {
    throw Error(ErrorCode::kInvalidArgument, "sum_matrices: expected a dtype that has a sum and ",
                config_.world_size, " inputs, got ", dtype_name(dtype), " and ", inputs.size());
  }
  const SignalParams params = params_of(SignalOperation::kBarrier, options);
  MatrixSum sum{};
  sum.part = part;
  sum.output = output;
  std::copy(inputs.begin(), inputs.end(), sum.inputs);
  const std::uint64_t units =
      part.lines * part.runs * ((part.run_bytes + kUnitBytes - 1) / kUnitBytes);
  if (units == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(
      (units + kMatrixSumThreads - 1) / kMatrixSumThreads, std::uint64_t{kMostMatrixSumBlocks}));
  const DeviceGuard guard(device_);
  launch_kernel(matrix_sum_kernel_address(dtype), blocks, kMatrixSumThreads, options.stream, params,
                sum);
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
  if (fault == DeviceFault::kWrongSplits) {
    throw Error(ErrorCode::kMismatch, row_exchange_name(report.shape.form), ": ",
                describe(report.shape, report.split));
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
