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
#include "kernels/gpu/interface/wire_params.hpp"
#include "kernels/gpu/launch/copy_streams.hpp"
#include "kernels/gpu/launch/first_counts.hpp"
#include "kernels/gpu/launch/kernel_addresses.hpp"
#include "kernels/gpu/launch/launch_params.hpp"
#include "kernels/gpu/launch/norm_launch.hpp"
#include "kernels/gpu/launch/share_division.hpp"
#include "kernels/gpu/launch/straight_launch.hpp"
#include "kernels/gpu/launch/transfer_schedule.hpp"
#include "kernels/gpu/launch/wire_route.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

constexpr unsigned kBlockThreads = 512;
constexpr std::uint64_t kBlockBytes = kBlockThreads * 16;  // that a block reads at once
static_assert(kMultimemThreads == kBlockThreads && kTransferThreads == kBlockThreads);

bool goes_over_wire(const Plan& plan) {
  return plan.algorithm == Algorithm::kLL || plan.algorithm == Algorithm::kLLTwoShot;
}

void check_wire(WireKind wire) {
  const auto& kernels = move_wire_kernels().of[static_cast<std::size_t>(wire)];
  if (kernels[kWireWorldCount - 1] != nullptr) return;
  throw Error(ErrorCode::kUnsupported, "this device library has no wire by lines of 128 bytes");
}

class GpuGroupKernels final : public GroupKernels {
 public:
  GpuGroupKernels(const GroupKernelsConfig& config, int device_index);
  ~GpuGroupKernels() override;

  void set_peer(int rank, std::byte* segment, WireKind messages) override;
  void set_wire(WireKind wire) override;
  void set_ranks_of_gpu(int ranks) override {
    ranks_of_gpu_ = ranks;
    schedule_.set_ranks_of_gpu(ranks);
  }
  void set_segment(int number, std::span<std::byte* const> bases) override;
  void launch(const CollectiveArgs& args, const Plan& plan, const LaunchOptions& options) override;
  void transfer(std::span<const TransferOp> ops, const LaunchOptions& options) override;
  void launch_copies(const CollectiveArgs& args, BufferLocation location,
                     std::span<std::byte* const> peer_outputs,
                     const LaunchOptions& options) override;
  void fold(const FoldCall& call, StreamHandle stream) override;
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void copy_to_device(void* to, const void* from, std::size_t bytes) override;
  void launch_multimem(const CollectiveArgs& args, const Plan& plan, const MultimemMemory& memory,
                       const LaunchOptions& options) override;
  void norm_rows(const CollectiveArgs& args, StreamHandle stream) override;

 private:
  CollectiveParams params_of(const CollectiveArgs& args, BufferLocation location = 0) const {
    return collective_params(args, config_, location);
  }
  void launch_over_wire(const CollectiveArgs& args, const Plan& plan, const LaunchOptions& options);
  void launch_over_lanes(const CollectiveArgs& args, const Plan& plan,
                         const LaunchOptions& options);
  // An all_to_all.
  void launch_shares(const CollectiveArgs& args, const LaunchOptions& options);
  void launch_by_plan(const CollectiveArgs& args, const Plan& plan, const LaunchOptions& options);
  bool launch_with_norm(const CollectiveArgs& args, const Plan& plan, const LaunchOptions& options);
  int most_wire_blocks(int wanted) const {
    const int most = std::min({static_cast<int>(config_.layout.wire_blocks), config_.most_blocks,
                               kMostWireBlocksOfGpu / ranks_of_gpu_});
    return std::clamp(wanted, 1, most);
  }
  void start_lanes(const WireLaunch& launch, const CollectiveParams& call, int channels,
                   const LaunchOptions& options);
  template <class Body>
  void by_world(const void* const (&kernels)[kWireWorldCount], const Body& body) const;
  void launch_copies_barrier(const CollectiveParams& call, const LaunchOptions& options);
  // The kernel of this group's wire and world size, with its parameters.
  std::uint32_t tiles_at_once(const WireKernels& kernels) const;
  template <class... More>
  void start_wire(const WireKernels& kernels, const WireLaunch& launch,
                  const CollectiveParams& call, const LaunchOptions& options, const More&... more);
  template <class Params, class... More>
  void start(const void* kernel, unsigned blocks, unsigned threads, const Params& params,
             const LaunchOptions& options, const More&... more);

  const GroupKernelsConfig config_;
  const MultimemKernel multimem_kernel_;
  const int device_;
  GroupParams group_{};
  bool has_table_ = false;  // of symmetric segments
  std::optional<MappedMemory> page_;
  CopyStreams copies_;
  TransferSchedule schedule_;
  WireKind wire_ = WireKind::kLL;
  int ranks_of_gpu_;
  WireRoute route_;
  WireLaunch barrier_;
  ShareDivision shares_;
};

GpuGroupKernels::GpuGroupKernels(const GroupKernelsConfig& config, int device_index)
    : config_(config),
      multimem_kernel_(config.multimem_kernel != nullptr ? config.multimem_kernel
                                                         : multimem_kernel_address),
      device_(device_index),
      copies_(config.world_size - 1),
      schedule_(config.rank, config.world_size, config.layout, config.poisons, config.most_blocks),
      ranks_of_gpu_(config.world_size),
      route_(config.world_size),
      shares_(config.world_size) {
  load_kernels();
  load_multimem_kernels(multimem_kernel_);
  group_.rank = config.rank;
  group_.world_size = config.world_size;
  group_.layout = config.layout;
  barrier_ = meeting_launch(config.rank, config.world_size);
  page_.emplace(config.page, sizeof(DevicePage), "mapping the group's page of host memory");
  group_.page = static_cast<DevicePage*>(page_->device_address());
}

GpuGroupKernels::~GpuGroupKernels() {
  const DeviceGuard guard(device_);
  page_.reset();
}

void GpuGroupKernels::set_wire(WireKind wire) {
  check_wire(wire);
  wire_ = wire;
}

void GpuGroupKernels::set_peer(int rank, std::byte* segment, WireKind messages) {
  check_wire(messages);
  schedule_.set_wire(rank, messages);
  group_.segments[rank] = segment;
  if (rank == config_.rank && config_.first != FirstCounts{}) {
    const DeviceGuard guard(device_);
    set_first_counts(config_.layout, config_.world_size, config_.first, segment, copies_);
  }
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
  has_table_ = true;
}

template <class Params, class... More>
void GpuGroupKernels::start(const void* kernel, unsigned blocks, unsigned threads,
                            const Params& params, const LaunchOptions& options,
                            const More&... more) {
  const WaitParams wait{timeout_ns(options), config_.poll_period};
  launch_kernel(kernel, blocks, threads, options.stream, group_, params, wait, more...);
}

// Of a block, by the kernels that start_wire() takes; NOTE [Blocks of a multiprocessor].
std::uint32_t GpuGroupKernels::tiles_at_once(const WireKernels& kernels) const {
  if (most_wire_blocks(kMaxWireBlocks) * ranks_of_gpu_ > kMostBulkBlocksOfGpu) return kWireTiles;
  const auto& of_wire = kernels.of[static_cast<std::size_t>(wire_)];
  const auto has_wide = [&](int world, std::size_t index) {
    return config_.world_size == world && of_wire[index] != nullptr &&
           wire_threads(world, wire_) == kMostWireThreads;
  };
  return has_wide(2, 0) || has_wide(4, 1) ? kMostWireTiles : kWireTiles;
}

template <class... More>
void GpuGroupKernels::start_wire(const WireKernels& kernels, const WireLaunch& launch,
                                 const CollectiveParams& call, const LaunchOptions& options,
                                 const More&... more) {
  const auto& of_wire = kernels.of[static_cast<std::size_t>(wire_)];
  const LaunchContext context{config_, group_, wire_, options};
  if constexpr (sizeof...(More) == 0) {
    if (start_few_tiles(kernels, launch, call, context, ranks_of_gpu_)) return;
  }
  // NOTE [Sets of tiles] in tile_sets.cuh
  const bool takes_sets =
      config_.world_size == 2 && wire_ == WireKind::kLine && kernels.two_take_sets;
  const unsigned threads = takes_sets ? kMostWireThreads : launch.threads;
  by_world(of_wire, [&](const void* kernel, auto ranks) {
    const auto params = wire_params<ranks()>(launch, call, context);
    launch_kernel(kernel, launch.blocks, threads, options.stream, params, more...);
  });
}

// Calls `body(kernel, ranks)` with the kernel of this world size, if there is one, and the number
// of ranks that its parameters hold.
template <class Body>
void GpuGroupKernels::by_world(const void* const (&kernels)[kWireWorldCount],
                               const Body& body) const {
  const int world = config_.world_size;
  if (world == 2 && kernels[0] != nullptr) {
    body(kernels[0], std::integral_constant<int, 2>{});
  } else if (world == 4 && kernels[1] != nullptr) {
    body(kernels[1], std::integral_constant<int, 4>{});
  } else if (world == 8 && kernels[2] != nullptr) {
    body(kernels[2], std::integral_constant<int, 8>{});
  } else {
    body(kernels[3], std::integral_constant<int, kMaxDeviceRanks>{});
  }
}

void GpuGroupKernels::launch_over_wire(const CollectiveArgs& args, const Plan& plan,
                                       const LaunchOptions& options) {
  const CollectiveParams call = params_of(args);
  const DeviceLayout& layout = config_.layout;
  // Of a reduce or broadcast: one hop is faster as long as what the root's links carry takes less
  // than another hop; two send less. Measured among four ranks by lines.
  const bool is_measured = config_.world_size == 4 && wire_ == WireKind::kLine;
  const std::uint64_t one_hop_bytes = (is_measured ? 256 : 16) * 1024;
  const std::uint64_t bytes = call.count * call.element_bytes;
  WireFacts facts;
  facts.rank = config_.rank;
  facts.world_size = config_.world_size;
  facts.tile_bytes = wire_tile(wire_).bytes;
  facts.most_blocks = most_wire_blocks(plan.channels);
  facts.box_tiles = layout.wire_box_tiles(wire_);
  // An all_reduce always: in one hop a rank could place results over inputs that it still sends.
  facts.two_hops = args.kind == CollectiveKind::kAllReduce
                       ? plan.algorithm == Algorithm::kLLTwoShot
                       : config_.world_size > 2 && bytes > one_hop_bytes;
  WireKernels kernels = move_wire_kernels();
  if (reduces(args.kind)) {
    kernels =
        reduce_table()[static_cast<std::size_t>(call.dtype)][static_cast<std::size_t>(call.op)]
            .wire;
  }
  facts.tiles_at_once = tiles_at_once(kernels);
  // Four ranks: more warps are slower there (docs/experiments.md, "Threads of a block").
  if (config_.world_size > 2) facts.most_for_two_hops = 2 * kMostWireTiles;
  route_.begin(args, facts);
  while (const WireLaunch* launch = route_.next()) start_wire(kernels, *launch, call, options);
}

void GpuGroupKernels::launch_over_lanes(const CollectiveArgs& args, const Plan& plan,
                                        const LaunchOptions& options) {
  const CollectiveParams call = params_of(args);
  WireFacts facts;
  facts.rank = config_.rank;
  facts.world_size = config_.world_size;
  facts.tile_bytes = kPieceUnit;
  facts.whole = true;
  // An all_reduce always: in one hop a rank could place results over inputs that it still sends.
  facts.two_hops = args.kind == CollectiveKind::kAllReduce || config_.world_size > 2;
  // Fewer ranks combine then, which takes longer until the root's links are what all wait for
  // (docs/benchmarks.md, "Reduce of more than two ranks").
  constexpr std::uint64_t kRootCombinesBelow = 32u << 20;
  facts.root_combines =
      config_.world_size <= 2 || call.count * call.element_bytes < kRootCombinesBelow;
  route_.begin(args, facts);
  start_lanes(*route_.next(), call, plan.channels, options);
}

// False where the call is not one for a single launch.
bool GpuGroupKernels::launch_with_norm(const CollectiveArgs& args, const Plan& plan,
                                       const LaunchOptions& options) {
  if (!goes_over_wire(plan)) return false;
  NormParams norm = norm_params(args);
  WireLaunch launch;  // without pieces: NormParams says what is sent
  // A block fills a multiprocessor.
  const int most_blocks =
      std::min(most_wire_blocks(plan.channels), std::max(1, kMostBulkBlocksOfGpu / ranks_of_gpu_));
  const NormFacts facts{config_.world_size, wire_, most_blocks,
                        config_.layout.wire_box_tiles(wire_)};
  if (!fits_norm_launch(norm, facts, launch)) return false;
  const NormKernels kernels = norm_kernels(args.dtype);
  const CollectiveParams call = params_of(args);
  const LaunchContext context{config_, group_, wire_, options};
  if (start_few_rows(kernels, launch, call, context, norm, ranks_of_gpu_)) return true;
  start_wire(kernels.wire, launch, call, options, norm);
  return true;
}

void GpuGroupKernels::norm_rows(const CollectiveArgs& args, StreamHandle stream) {
  constexpr std::uint64_t kMostBlocks = 1024;
  NormParams norm = norm_params(args);
  if (norm.rows == 0) return;
  const DeviceGuard guard(device_);
  const auto blocks = static_cast<unsigned>(std::min(norm.rows, kMostBlocks));
  const RowNormKernels kernels = norm_kernels(args.dtype).rows;
  launch_kernel(has_whole_rows(norm) ? kernels.whole : kernels.any, blocks, kNormThreads, stream,
                norm);
}

void GpuGroupKernels::start_lanes(const WireLaunch& launch, const CollectiveParams& call,
                                  int channels, const LaunchOptions& options) {
  BulkKernels kernels = move_bulk_kernels();
  if (reduces(call.kind)) {
    kernels =
        reduce_table()[static_cast<std::size_t>(call.dtype)][static_cast<std::size_t>(call.op)]
            .bulk;
  }
  const int most_blocks = std::max(1, std::min({kMaxBulkBlocks, config_.most_blocks,  //
                                                kMostBulkBlocksOfGpu / ranks_of_gpu_}));
  const int wanted = std::clamp(channels, 1, most_blocks);
  const LaneShape shape = lane_shape(call.kind, config_.world_size, wanted, launch.root_combines);
  const LaneGrid grid = lane_grid(shape, config_.layout, config_.world_size, wanted);
  const LaunchContext context{config_, group_, wire_, options, has_table_};
  by_world(kernels.of, [&](const void* kernel, auto ranks) {
    const auto params = bulk_params<ranks()>(launch, call, shape, grid.lanes_of_block, context);
    launch_kernel(kernel, grid.blocks, kBulkThreads, options.stream, params);
  });
}

void GpuGroupKernels::launch_copies_barrier(const CollectiveParams& call,
                                            const LaunchOptions& options) {
  barrier_.ends_call = call.ends_call;
  start_wire(copies_barrier_kernels(), barrier_, call, options, call);
}

void GpuGroupKernels::launch(const CollectiveArgs& args, const Plan& plan,
                             const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  if (args.norm.columns == 0) {
    launch_by_plan(args, plan, options);
  } else if (!launch_with_norm(args, plan, options)) {
    launch_by_plan(args, plan, options);
    norm_rows(args, options.stream);
  }
}

void GpuGroupKernels::launch_by_plan(const CollectiveArgs& args, const Plan& plan,
                                     const LaunchOptions& options) {
  if (args.kind == CollectiveKind::kBarrier) {
    barrier_.ends_call = true;
    start_wire(barrier_kernels(), barrier_, params_of(args), options);
  } else if (args.kind == CollectiveKind::kAllToAll) {
    launch_shares(args, options);
  } else if (goes_over_wire(plan)) {
    launch_over_wire(args, plan, options);
  } else {
    launch_over_lanes(args, plan, options);
  }
}

void GpuGroupKernels::transfer(std::span<const TransferOp> ops, const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  schedule_.plan(ops, [&](const TransferParams& params) {
    if (start_lone_messages(params, {config_, group_, wire_, options}, ranks_of_gpu_)) return;
    const unsigned own_blocks = params.own.bytes > kBlockBytes ? 4 : 1;
    const auto serving = static_cast<unsigned>(params.group_count * params.blocks);
    const unsigned blocks = serving + (params.own.bytes > 0 || serving == 0 ? own_blocks : 0);
    start(transfer_kernel_address(params.forms), blocks, static_cast<unsigned>(params.threads),
          params, options);
  });
}

void GpuGroupKernels::launch_shares(const CollectiveArgs& args, const LaunchOptions& options) {
  const ShareFacts facts{.rank = config_.rank,
                         .world_size = config_.world_size,
                         .wire = wire_,
                         .most_blocks = most_wire_blocks(kMaxWireBlocks),
                         .box_tiles = config_.layout.wire_box_tiles(wire_),
                         .tiles_at_once = tiles_at_once(share_wire_kernels())};
  shares_.divide(args, facts);
  CollectiveParams call{};
  call.kind = CollectiveKind::kAllToAll;
  call.poison = config_.poisons ? poison_of(args.dtype) : 0;
  if (const WireLaunch* launch = shares_.over_wire()) {
    start_wire(share_wire_kernels(), *launch, call, options);
  }
  if (const WireLaunch* launch = shares_.by_lanes()) {
    start_lanes(*launch, call, kMaxBulkBlocks, options);
  }
}

void GpuGroupKernels::launch_copies(const CollectiveArgs& args, BufferLocation location,
                                    std::span<std::byte* const> peer_outputs,
                                    const LaunchOptions& options) {
  const DeviceGuard guard(device_);
  CollectiveParams barrier = params_of(args, location);
  if (args.kind == CollectiveKind::kAllToAll) {
    // One array, of equal shares.
    barrier.output = args.output_parts[0].data;
    barrier.count = args.output_parts[0].count * args.output_parts.size();
  }
  barrier.ends_call = false;
  launch_copies_barrier(barrier, options);
  copies_.run(copies_of(args, config_.rank, peer_outputs),
              static_cast<gpuStream_t>(options.stream));
  barrier.ends_call = true;
  launch_copies_barrier(barrier, options);
}

void GpuGroupKernels::fold(const FoldCall& call, StreamHandle stream) {
  const DeviceGuard guard(device_);
  launch_fold(call, stream);
}

void GpuGroupKernels::copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  const DeviceGuard guard(device_);
  check_gpu(gpuMemcpyAsync(to, from, bytes, gpuMemcpyAnyToAny, static_cast<gpuStream_t>(stream)),
            "copying memory");
}

void GpuGroupKernels::copy_to_host(void* to, const void* from, std::size_t bytes) {
  const DeviceGuard guard(device_);
  copies_.copy_to_host(to, from, bytes);
}

void GpuGroupKernels::copy_to_device(void* to, const void* from, std::size_t bytes) {
  const DeviceGuard guard(device_);
  copies_.copy_to_device(to, from, bytes);
}

void GpuGroupKernels::launch_multimem(const CollectiveArgs& args, const Plan& plan,
                                      const MultimemMemory& memory, const LaunchOptions& options) {
  const void* const kernel = multimem_kernel_(args.kind, args.dtype, args.op);
  if (kernel == nullptr) {
    throw Error(ErrorCode::kUnsupported, "multimem: this device library has no such kernel");
  }
  const DeviceGuard guard(device_);
  const bool has_output = memory.output.multicast != nullptr;
  CollectiveParams call =
      params_of(args, has_output ? memory.output.location : memory.input.location);
  call.factor = std::bit_cast<double>(has_output ? memory.input.location : BufferLocation{0});
  MultimemParams params{};
  params.input_multicast = memory.input.multicast;
  params.output_multicast = memory.output.multicast;
  std::copy(memory.input.ranks.begin(), memory.input.ranks.end(), params.inputs);
  std::copy(memory.output.ranks.begin(), memory.output.ranks.end(), params.outputs);
  const std::uint64_t bytes = call.count * call.element_bytes;
  const auto most = static_cast<std::uint64_t>(std::clamp(plan.channels, 1, config_.most_blocks));
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>((bytes + kBlockBytes - 1) / kBlockBytes, 1, most);
  start(kernel, static_cast<unsigned>(blocks), kBlockThreads, call, options, params);
}

}  // namespace

std::unique_ptr<GroupKernels> make_gpu_group_kernels(const GroupKernelsConfig& config,
                                                     int device_index) {
  const DeviceGuard guard(device_index);
  return std::make_unique<GpuGroupKernels>(config, device_index);
}

}  // namespace symm
