#include "kernels/gpu/launch/gpu_kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/launch/copy_streams.hpp"
#include "kernels/gpu/launch/transfer_schedule.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

constexpr unsigned kBlockThreads = 512;
constexpr std::uint64_t kBlockBytes = kBlockThreads * 16;  // that a block reads at once
static_assert(kMultimemThreads == kBlockThreads);

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

const ReduceKernelTable& reduce_table() {
  static const ReduceKernelTable table = [] {
    ReduceKernelTable entries;
    for (const auto enter : {reduce_float16, reduce_float32, reduce_float8, reduce_narrow_integer,
                             reduce_wide_integer}) {
      enter(entries);
    }
    return entries;
  }();
  return table;
}

void load_kernels() {
  const auto load = [](const void* kernel) {
    if (kernel != nullptr) load_kernel(kernel);
  };
  for (const void* kernel : {move_ll_kernel_address(), move_pipeline_kernel_address(),
                             copy_barrier_kernel_address(), transfer_kernel_address()}) {
    load(kernel);
  }
  for (const auto& of_dtype : reduce_table()) {
    for (const ReduceKernelPair& kernels : of_dtype) {
      load(kernels.ll);
      load(kernels.pipeline);
    }
  }
  load(multimem_kernel_address(CollectiveKind::kAllGather, Dtype::kUInt8, ReduceOp::kSum));
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      load(multimem_kernel_address(CollectiveKind::kAllReduce, static_cast<Dtype>(dtype),
                                   static_cast<ReduceOp>(op)));
    }
  }
}

class GpuGroupKernels final : public GroupKernels {
 public:
  GpuGroupKernels(const GroupKernelsConfig& config, int device_index);
  ~GpuGroupKernels() override;

  void set_peer(int rank, std::byte* segment) override;
  void set_segment(int number, std::span<std::byte* const> bases) override;
  void launch(const CollectiveArgs& args, const Plan& plan, BufferLocation location,
              const LaunchOptions& options) override;
  void transfer(std::span<const TransferOp> ops, bool collective,
                const LaunchOptions& options) override;
  void launch_copies(const CollectiveArgs& args, BufferLocation location,
                     std::span<std::byte* const> peer_outputs,
                     const LaunchOptions& options) override;
  void launch_multimem(const CollectiveArgs& args, const Plan& plan, const MultimemMemory& memory,
                       const LaunchOptions& options) override;

 private:
  void start_counters(std::byte* segment);
  CollectiveParams params_of(const CollectiveArgs& args, const Plan& plan,
                             BufferLocation location) const;
  // Bytes of each message that one LL launch carries.
  std::uint64_t ll_limit(const CollectiveParams& call) const;
  void launch_ll(const void* kernel, CollectiveParams& call, int channels,
                 const LaunchOptions& options);
  template <class Params, class... More>
  void start(const void* kernel, unsigned blocks, const Params& params,
             const LaunchOptions& options, const More&... more);

  const GroupKernelsConfig config_;
  const int device_;
  GroupParams group_{};
  std::optional<MappedMemory> page_;
  CopyStreams copies_;
  TransferSchedule schedule_;
};

GpuGroupKernels::GpuGroupKernels(const GroupKernelsConfig& config, int device_index)
    : config_(config),
      device_(device_index),
      copies_(config.world_size - 1),
      schedule_(config.rank, config.world_size, config.poisons) {
  load_kernels();
  group_.rank = config.rank;
  group_.world_size = config.world_size;
  group_.layout = config.layout;
  page_.emplace(config.page, sizeof(DevicePage), "mapping the group's page of host memory");
  group_.page = static_cast<DevicePage*>(page_->device_address());
}

GpuGroupKernels::~GpuGroupKernels() {
  const DeviceGuard guard(device_);
  page_.reset();
}

void GpuGroupKernels::set_peer(int rank, std::byte* segment) {
  group_.segments[rank] = segment;
  if (rank == config_.rank && config_.first != FirstCounts{}) {
    const DeviceGuard guard(device_);
    start_counters(segment);
  }
}

// Sets the counters of the group to those of `first` in place of 0.
void GpuGroupKernels::start_counters(std::byte* segment) {
  const DeviceLayout& layout = config_.layout;
  const FirstCounts& first = config_.first;
  const auto write = [&](std::uint64_t offset, const auto& values) {
    copies_.copy_to_device(segment + offset, values.data(), values.size() * sizeof(values[0]));
  };
  const auto world = static_cast<std::size_t>(config_.world_size);
  ChannelSignal signal{};
  signal.ready = first.ready;
  signal.done = first.steps;
  write(layout.channel_signals, std::vector<ChannelSignal>(kMaxChannels * world, signal));
  write(layout.ll_done, std::vector<std::uint32_t>(world, first.ll));
  write(layout.p2p_signals, std::vector<P2pSignal>(world * kP2pChannels, {first.p2p, first.p2p}));
  std::vector<LocalState> local(1);
  local[0].ll_epoch = first.ll;
  std::fill_n(local[0].channel_epoch, kMaxChannels, first.steps);
  for (auto& of_peer : local[0].p2p_channels) {
    std::fill_n(of_peer, kP2pChannels, P2pCounter{first.p2p, first.p2p});
  }
  write(layout.local, local);
}

void GpuGroupKernels::set_segment(int number, std::span<std::byte* const> bases) {
  if (number < 0 || number >= kMaxSegments) {
    throw Error(ErrorCode::kUnsupported, "a group knows at most " + std::to_string(kMaxSegments) +
                                             " symmetric segments of a device");
  }
  const DeviceGuard guard(device_);
  const std::uint64_t row = static_cast<std::uint64_t>(number) * bases.size();
  copies_.copy_to_device(
      group_.segments[config_.rank] + config_.layout.table + row * sizeof(std::byte*), bases.data(),
      bases.size() * sizeof(std::byte*));
}

CollectiveParams GpuGroupKernels::params_of(const CollectiveArgs& args, const Plan& plan,
                                            BufferLocation location) const {
  const bool reducing = reduces(args.kind);
  const ReductionRule rule =
      reducing ? reduction_rule(args.dtype, args.op) : ReductionRule{args.dtype, args.op, 1};
  const auto elements = static_cast<std::uint64_t>(rule.elements);
  CollectiveParams call{};
  call.kind = args.kind;
  call.algorithm = plan.algorithm;
  call.premultiplies = reducing && args.op == ReduceOp::kPreMulSum;
  call.ends_call = true;
  call.root = args.root;
  call.divisor = reducing && args.op == ReduceOp::kAvg ? config_.world_size : 0;
  call.element_bytes = static_cast<std::uint32_t>(dtype_bytes(rule.dtype));
  call.slot_bytes = static_cast<std::uint32_t>(
      plan.chunk_bytes == 0 ? config_.layout.slot_bytes
                            : std::min<std::uint64_t>(plan.chunk_bytes, config_.layout.slot_bytes));
  call.dtype = rule.dtype;
  call.op = rule.op;
  call.input = args.input;
  call.output = args.output;
  call.count = args.count * elements;
  call.limit = kUnlimited;
  call.location = location;
  call.factor = args.factor;
  call.poison = config_.poisons ? poison_of(args.dtype) : 0;
  const std::span<const Part> parts =
      args.input_parts.empty() ? args.output_parts : args.input_parts;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    call.parts[r] = {parts[r].data, parts[r].count * elements};
  }
  return call;
}

template <class Params, class... More>
void GpuGroupKernels::start(const void* kernel, unsigned blocks, const Params& params,
                            const LaunchOptions& options, const More&... more) {
  const auto timeout = std::max<std::int64_t>(options.timeout.count(), 0);
  WaitParams wait{static_cast<std::uint64_t>(timeout), config_.poll_period};
  void* arguments[] = {&group_, const_cast<Params*>(&params), &wait, const_cast<More*>(&more)...};
  check_gpu(gpuLaunchKernel(kernel, dim3(blocks), dim3(kBlockThreads), arguments, 0,
                            static_cast<gpuStream_t>(options.stream)),
            "launching a kernel");
}

std::uint64_t GpuGroupKernels::ll_limit(const CollectiveParams& call) const {
  const std::uint64_t buffer = config_.layout.ll_buffer_data_bytes() / 16 * 16;
  if (call.algorithm != Algorithm::kLLTwoShot) return buffer;
  // The inputs and the results of a share are in one LL buffer.
  return buffer / 32 * 16 * static_cast<std::uint64_t>(config_.world_size);
}

// Divides the call into launches by the size of the LL buffers.
void GpuGroupKernels::launch_ll(const void* kernel, CollectiveParams& call, int channels,
                                const LaunchOptions& options) {
  std::uint64_t largest = call.count;
  for (int r = 0; r < config_.world_size; ++r) largest = std::max(largest, call.parts[r].count);
  largest *= call.element_bytes;
  call.limit = ll_limit(call);
  for (call.begin = 0;; call.begin += call.limit) {
    const std::uint64_t bytes = std::min(call.limit, largest - std::min(call.begin, largest));
    const std::uint64_t blocks = std::clamp<std::uint64_t>((bytes + kBlockBytes - 1) / kBlockBytes,
                                                           1, static_cast<std::uint64_t>(channels));
    call.ends_call = largest - std::min(call.begin, largest) <= call.limit;
    start(kernel, static_cast<unsigned>(blocks), call, options);
    if (call.ends_call) return;
  }
}

void GpuGroupKernels::launch(const CollectiveArgs& args, const Plan& plan, BufferLocation location,
                             const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  CollectiveParams call = params_of(args, plan, location);
  const bool is_ll = plan.algorithm == Algorithm::kLL || plan.algorithm == Algorithm::kLLTwoShot;
  const int channels = std::clamp(plan.channels, 1, kMaxChannels);
  const void* kernel = is_ll ? move_ll_kernel_address() : move_pipeline_kernel_address();
  if (reduces(args.kind)) {
    const ReductionRule rule = reduction_rule(args.dtype, args.op);
    const ReduceKernelPair& kernels =
        reduce_table()[static_cast<std::size_t>(rule.dtype)][static_cast<std::size_t>(rule.op)];
    kernel = is_ll ? kernels.ll : kernels.pipeline;
  }
  if (is_ll) {
    launch_ll(kernel, call, channels, options);
  } else {
    start(kernel, static_cast<unsigned>(channels), call, options);
  }
}

void GpuGroupKernels::transfer(std::span<const TransferOp> ops, bool collective,
                               const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  schedule_.plan(ops, collective, [&](const TransferParams& params) {
    constexpr unsigned kOwnBlocks = 4;
    const unsigned channels = static_cast<unsigned>(params.group_count * kP2pChannelsPerTag);
    const unsigned blocks = channels + (params.own.bytes > 0 || channels == 0 ? kOwnBlocks : 0);
    start(transfer_kernel_address(), blocks, params, options);
  });
}

void GpuGroupKernels::launch_copies(const CollectiveArgs& args, BufferLocation location,
                                    std::span<std::byte* const> peer_outputs,
                                    const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  Plan plan;
  plan.algorithm = Algorithm::kCopyEngine;
  CollectiveParams barrier = params_of(args, plan, location);
  if (args.kind == CollectiveKind::kAllToAll) {
    // One array, of equal shares.
    barrier.output = args.output_parts[0].data;
    barrier.count = args.output_parts[0].count * args.output_parts.size();
  }
  barrier.ends_call = false;
  start(copy_barrier_kernel_address(), 1, barrier, options);
  copies_.run(copies_of(args, config_.rank, peer_outputs),
              static_cast<gpuStream_t>(options.stream));
  barrier.ends_call = true;
  start(copy_barrier_kernel_address(), 1, barrier, options);
}

void GpuGroupKernels::launch_multimem(const CollectiveArgs& args, const Plan& plan,
                                      const MultimemMemory& memory, const LaunchOptions& options) {
  const void* const kernel = multimem_kernel_address(args.kind, args.dtype, args.op);
  if (kernel == nullptr) {
    throw Error(ErrorCode::kUnsupported, "multimem: this device library has no such kernel");
  }
  const DeviceGuard guard(device_);
  const bool has_output = memory.output.multicast != nullptr;
  CollectiveParams call =
      params_of(args, plan, has_output ? memory.output.location : memory.input.location);
  call.factor = std::bit_cast<double>(has_output ? memory.input.location : BufferLocation{0});
  MultimemParams params{};
  params.input_multicast = memory.input.multicast;
  params.output_multicast = memory.output.multicast;
  std::copy(memory.input.ranks.begin(), memory.input.ranks.end(), params.inputs);
  std::copy(memory.output.ranks.begin(), memory.output.ranks.end(), params.outputs);
  const std::uint64_t bytes = call.count * call.element_bytes;
  const std::uint64_t most = static_cast<std::uint64_t>(std::clamp(plan.channels, 1, kMaxChannels));
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>((bytes + kBlockBytes - 1) / kBlockBytes, 1, most);
  start(kernel, static_cast<unsigned>(blocks), call, options, params);
}

}  // namespace

std::unique_ptr<GroupKernels> make_gpu_group_kernels(const GroupKernelsConfig& config,
                                                     int device_index) {
  const DeviceGuard guard(device_index);
  return std::make_unique<GpuGroupKernels>(config, device_index);
}

}  // namespace symm
