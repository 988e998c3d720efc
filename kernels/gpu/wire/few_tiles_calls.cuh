// What the kernels of few_tiles.cuh and lone_message.cuh call since it seldom happens, with as few
// arguments as can be (each is an instruction on the way), and what both use.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/few_tiles_params.hpp"
#include "kernels/gpu/wire/route.cuh"

namespace symm {

template <int kPeers>
__device__ __forceinline__ int rank_of_peer(const FewTilesParams<kPeers>& params, int peer) {
  return peer + (peer >= params.rank ? 1 : 0);
}
template <int kPeers>
__device__ __forceinline__ const std::uint64_t* done_of_peer(const FewTilesParams<kPeers>& params,
                                                             int peer) {
  return global_pointer(params.done) +
         static_cast<unsigned>(rank_of_peer(params, peer)) * params.box_blocks + blockIdx.x;
}

// What a wait does now and then; as look_up().
template <int kPeers>
__device__ SYMM_OUTLINED_METHOD std::uint64_t look_for(const FewTilesParams<kPeers>& params,
                                                       int peer, std::uint64_t first_look) {
  return look_up(global_pointer(params.local), params.page, params.timeout_ns,
                 rank_of_peer(params, peer), first_look);
}

// Until a peer has ended the last epoch but one; false where the launch must end.
template <int kPeers>
__device__ SYMM_OUTLINED_METHOD bool await_end_of_epoch(const FewTilesParams<kPeers>& params,
                                                        int peer, std::uint64_t epoch) {
  std::uint64_t first_look = 0;
  const std::uint64_t* const done = done_of_peer(params, peer);
  for (std::uint32_t polls = 1; !has_reached(load_relaxed(done) + 2, epoch); ++polls) {
    if ((polls & (params.poll_period - 1)) != 0) continue;
    first_look = look_for(params, peer, first_look);
    if (first_look == 0) return false;
  }
  return true;
}

template <int N, class Rule>
__device__ SYMM_OUTLINED Unit average_of(UnitSum<Rule> sum) {
  if constexpr (kIsScaled<Rule>) {
    return sum.template finish<ScaledSum<Rule>>(scaled_facts<Rule>({}, N));
  } else {
    return sum.finish({nullptr, false, N, 0});
  }
}

// Reports the first tile of a peer that has the flag of another size. By a warp of block 0.
template <class Tile, int kPeers>
__device__ SYMM_OUTLINED_METHOD void report_other_sizes(const FewTilesParams<kPeers>& params,
                                                        std::uint64_t epoch) {
  const int peer = static_cast<int>(tile_thread());
  if (blockIdx.x != 0 || peer >= kPeers || (params.hears[0] >> peer & 1) == 0) return;
  const std::uint64_t odd = (epoch & 1) * params.box_blocks;
  const std::byte* const box = global_pointer(params.peers[peer].from) + odd * params.box_step;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(box);
  const std::uint64_t ahead = load_relaxed(words + Tile::kFlagWord) - epoch;
  const std::uint32_t mine = params.peers[peer].take.bytes;
  if (ahead % (std::uint64_t{1} << kSizeShift) != 0 || ahead >> kSizeShift == mine) return;
  LocalState& local = *global_pointer(params.local);
  fail_group(local, *global_pointer(params.page), DeviceFault::kCountMismatch,
             rank_of_peer(params, peer), collective_number(local), false, ahead >> kSizeShift,
             mine);
}

template <int kPeers>
__device__ SYMM_OUTLINED_METHOD void end_idle_blocks(const FewTilesParams<kPeers>& params) {
  end_blocks_from(params.share_blocks, params.box_blocks, *global_pointer(params.local),
                  params.counts_calls ? global_pointer(params.page) : nullptr, params.ends_call,
                  [&](std::uint64_t block, std::uint64_t epoch) {
                    for (const FewTilesPeer& peer : params.peers) {
                      store_relaxed(global_pointer(peer.done) + block, epoch);
                    }
                  });
}

// NOTE [Poison] in poison.cuh. By the whole block.
template <class Tile, bool kShares, int kPeers>
__device__ SYMM_OUTLINED_METHOD void poison_tiles(const FewTilesParams<kPeers>& params) {
  if (params.poison == 0) return;
  release_earlier_work();
  const auto fill = [&](const WirePiece& piece) {
    const std::uint32_t part = (kShares ? piece.tiles : params.tiles_per_block) * Tile::kBytes;
    const std::uint32_t begin = blockIdx.x * part;
    if (piece.data == nullptr || begin >= piece.bytes) return;
    fill_poison(piece.data + begin, min_size(part, piece.bytes - begin), params.poison);
  };
  for (int p = 0; p < kPeers; ++p) {
    if ((params.stores >> p & 1) != 0) fill(params.peers[p].take);
  }
  if (params.stores_own) fill(params.own_take);
}

// Of this thread's unit of a tile, where it may be odd or cut off.
template <class Tile>
__device__ SYMM_OUTLINED Unit load_any(const std::byte* source, std::uint32_t left) {
  return Tile::with_own_part(Tile::load(source, left));
}
template <class Tile>
__device__ SYMM_OUTLINED void store_any(std::byte* destination, Unit unit, std::uint32_t left) {
  Tile::store(destination, unit, left);
}

// Words are chosen, as the address of a unit would keep it out of registers.
__device__ __forceinline__ Unit either(bool first, const Unit& a, const Unit& b) {
  Unit unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) unit.words[i] = first ? a.words[i] : b.words[i];
  return unit;
}

}  // namespace symm
