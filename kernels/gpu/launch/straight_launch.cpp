#include "kernels/gpu/launch/straight_launch.hpp"

#include <type_traits>

#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm {

namespace {

// `start(kernels, peers)` with the kernels of this world size and its number of peers; false where
// they are compiled for none.
template <class Kernels, class Start>
bool for_peers(const Kernels (&kernels)[kWireWorldCount], int world_size, const Start& start) {
  switch (world_size) {
    case 2:
      return start(kernels[0], std::integral_constant<int, 1>{});
    case 4:
      return start(kernels[1], std::integral_constant<int, 3>{});
    case 8:
      return start(kernels[2], std::integral_constant<int, 7>{});
    default:
      return false;
  }
}

}  // namespace

bool start_few_tiles(const WireKernels& kernels, const WireLaunch& launch,
                     const CollectiveParams& call, const LaunchContext& context, int ranks_of_gpu) {
  const GroupKernelsConfig& config = context.config;
  if (context.wire != WireKind::kLine ||
      !has_few_tiles_a_warp(launch, call, context.wire, config.rank, config.world_size,
                            ranks_of_gpu)) {
    return false;
  }
  const auto start = [&](const FewTilesKernels& of_world, auto peers) {
    if (of_world.whole == nullptr) return false;
    const auto params = few_tiles_params<peers()>(launch, call, context);
    const bool is_whole = has_whole_units(params);
    const void* kernel = is_whole ? of_world.whole : of_world.any;
    const std::uint32_t most = few_tiles_warps(config.world_size);
    std::uint32_t warps = launch.tiles_per_block;
    if (warps > most) {
      const std::uint32_t at_once = tiles_of_round(config.world_size);
      const std::uint32_t rounds = divided_up(warps, most * at_once);
      kernel = is_whole ? of_world.rounds : nullptr;
      warps = divided_up(warps, rounds * at_once);
    }
    if (kernel == nullptr) return false;
    launch_kernel(kernel, launch.blocks, warps * kTileThreads, context.options.stream, params);
    return true;
  };
  return for_peers(kernels.few_tiles, config.world_size, start);
}

bool start_few_rows(const NormKernels& kernels, const WireLaunch& launch,
                    const CollectiveParams& call, const LaunchContext& context,
                    const NormParams& norm, int ranks_of_gpu) {
  if (context.wire != WireKind::kLine) return false;
  const int number = few_rows_number(launch, norm, ranks_of_gpu);
  if (number < 0) return false;
  const auto start = [&](const auto& of_world, auto peers) {
    const void* const kernel = of_world[number];
    if (kernel == nullptr) return false;
    const auto params = few_tiles_params<peers()>(launch, call, context);
    const auto warps = static_cast<unsigned>(
        divided_up(launch.tiles_per_block, kFewRowsTiles[static_cast<std::size_t>(number)]));
    launch_kernel(kernel, launch.blocks, std::max(warps * kTileThreads, kNormThreads),
                  context.options.stream, params, norm);
    return true;
  };
  return for_peers(kernels.few_rows, context.config.world_size, start);
}

bool start_lone_messages(const TransferParams& transfer, const LaunchContext& context,
                         int ranks_of_gpu) {
  if (!are_lone_messages(transfer, ranks_of_gpu)) return false;
  const LoneMessageParams params = lone_message_params(
      transfer, context.group, timeout_ns(context.options), context.config.poll_period);
  const LoneMessageKernels kernels = lone_message_kernels();
  const bool is_whole = has_whole_messages(transfer);
  const void* kernel = is_whole ? kernels.whole : kernels.any;
  auto threads = static_cast<unsigned>(transfer.threads);
  if (transfer.forms == MessageForms::kManyLineBoxes) {
    const auto messages =
        std::span(params.messages).first(static_cast<std::size_t>(transfer.group_count));
    if (!have_few_boxes(messages)) return false;
    kernel = is_whole ? kernels.many_whole : kernels.many_any;
    threads = warps_of_lone(messages) * kTileThreads;
  }
  launch_kernel(
      kernel,
      dim3(static_cast<unsigned>(transfer.blocks), static_cast<unsigned>(transfer.group_count)),
      threads, context.options.stream, params);
  return true;
}

}  // namespace symm
