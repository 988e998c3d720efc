// Messages in boxes (NOTE [Messages in boxes] in message_boxes.cuh) that are the only ones of their
// peer, direction and tag channel in a launch: the same protocol straight on, as NOTE [Few tiles]
// in few_tiles.cuh. The other end may launch another kernel for the same message.
#pragma once

#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/lone_message_params.hpp"
#include "kernels/gpu/wire/few_tiles_calls.cuh"
#include "kernels/gpu/wire/message.cuh"

namespace symm {

__device__ inline const LoneMessage& message_of(const LoneMessageParams& params) {
  return params.messages[blockIdx.y];
}
// The same in registers. Which it is the kernel knows only as it runs, so that each word is a load
// of its own, from lines of the parameters that are not in the cache yet: all are on their way
// before one is waited for.
__device__ __forceinline__ LoneMessage loaded_message_of(const LoneMessageParams& params) {
  LoneMessage message = message_of(params);
  keep_in_register(message.data);
  keep_in_register(message.tag);
  keep_in_register(message.bytes);
  keep_in_register(message.part_bytes);
  keep_in_register(message.boxes);
  keep_in_register(message.box_bytes);
  keep_in_register(message.count);
  keep_in_register(message.freed);
  keep_in_register(message.ended);
  keep_in_register(message.entered);
  keep_in_register(message.completed);
  return message;
}

// Reports that a message of another tag or size has come.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void report_other_message(
    const LoneMessageParams& params, MessageHeader theirs, std::uint64_t number) {
  const LoneMessage& mine = message_of(params);
  const bool is_tag = theirs.tag != mine.tag;
  fail_group(*global_pointer(params.local), *global_pointer(params.page),
             is_tag ? DeviceFault::kTagMismatch : DeviceFault::kCountMismatch, mine.peer, number,
             true, is_tag ? static_cast<std::uint64_t>(theirs.tag) : theirs.bytes,
             is_tag ? static_cast<std::uint64_t>(mine.tag) : mine.bytes);
}

// What a wait for message `number` does now and then; as look_up(). Looks for the message as chunks
// too (NOTE [Position of a message] in message.cuh), where `receives`.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD std::uint64_t look_for_message(
    const LoneMessageParams& params, std::uint64_t number, std::uint64_t first_look, bool receives,
    std::uint32_t chunks, std::uint32_t position) {
  const LoneMessage& mine = message_of(params);
  if (receives) {
    const MessageSignal& chunk = global_pointer(mine.signals)[chunks & (mine.slots - 1)];
    if (has_chunk(chunk, filled_with(chunks, position))) {
      report_other_message(params, header_of(chunk), number);
      return 0;
    }
  }
  return look_while(global_pointer(params.local), params.page, params.timeout_ns, mine.peer,
                    first_look, true, [=] { return number; });
}

// Whether the header of another message has come in the place of the one at `position`, which is
// reported. By a warp; the tiles behind a shorter message's do not come.
template <class Tile>
__device__ SYMM_OUTLINED_METHOD bool has_other_header(const LoneMessageParams& params,
                                                      std::byte* tile, std::uint64_t flag,
                                                      std::uint32_t position,
                                                      std::uint64_t number) {
  Unit unit;
  Tile::converge();
  if (!Tile::all(Tile::receive(tile, flag, &unit))) return false;
  static_cast<void>(Tile::receive(tile, flag, &unit));  // NOTE [Wires] in tile.cuh
  const auto header = __builtin_bit_cast(BoxHeader, unit);
  const LoneMessage& mine = message_of(params);
  const bool is_other = threadIdx.x == 0 && header.position == position &&
                        (header.bytes != mine.bytes || header.tag != mine.tag);
  if (is_other) report_other_message(params, {header.bytes, header.tag}, number);
  return Tile::any(is_other);
}

// `kMany`: a warp has any number of tiles, kLoneTilesAtOnce together, in any number of boxes; else
// every warp has at most one tile.
template <class Tile, bool kWhole, bool kMany>
class LoneMessageBlock {
 public:
  __device__ __forceinline__ explicit LoneMessageBlock(const LoneMessageParams& params)
      : params_(params),
        message_(loaded_message_of(params)),
        alive_(load_relaxed(&global_pointer(params.local)->dead) == 0),
        before_(load_data(global_pointer(message_.ended))),
        count_(load_data(count_word())),
        chunks_(load_data(global_pointer(message_.chunks))) {}

  // False where the launch must end. By the whole block.
  __device__ __forceinline__ bool run() {
    Units units{};
    std::uint32_t freed = 0;
    if (message_.is_send) {
      freed = load_relaxed(freed_word());
      load(warp() * kTiles, units);
    }
    if (alive_ && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(global_pointer(message_.entered), number());
    }
    const std::uint32_t tiles = exists() ? tiles_of_part() : 0;
    bool ok = Tile::all(alive_);
    if constexpr (!kMany) {
      const bool has_tile = warp() < tiles;
      if (ok && has_tile && message_.is_send) ok = send(warp(), units, freed, tiles);
      if (ok && has_tile && !message_.is_send) ok = receive(warp(), tiles);
      return block_all(ok);
    }
    if (message_.is_send) return block_all(ok && send_boxes(tiles, units, freed));
    return block_all(ok) && receive_boxes(tiles);
  }

  __device__ __forceinline__ void end() const {
    if (threadIdx.x != 0) return;
    if (exists()) {
      store_data(count_word(), count_ + boxes_of_part());
      if (!kMany && !message_.is_send) free_box();
    }
    if (gridDim.x > 1) {
      std::uint32_t* const ticket = global_pointer(message_.ticket);
      if (device_fetch_add(ticket, 1u) + 1 != gridDim.x) return;
      store_data(ticket, 0);
    }
    store_data(global_pointer(message_.ended), number());
    store_relaxed(global_pointer(message_.completed), number());
  }

 private:
  static constexpr std::uint32_t kTiles = kMany ? kLoneTilesAtOnce : 1;
  static constexpr std::uint32_t kHeaderBytes = sizeof(BoxHeader);
  static constexpr std::uint32_t kWordsOfCounter = sizeof(P2pCounter) / sizeof(std::uint64_t);
  using Units = Unit[kTiles];

  __device__ static std::uint32_t warp() { return threadIdx.x / kTileThreads; }
  __device__ static std::uint32_t stride() { return blockDim.x / kTileThreads * kTiles; }
  // Whether this thread's unit of a tile of the part is its header.
  __device__ static bool is_header(std::uint32_t tile) { return tile == 0 && threadIdx.x == 0; }
  __device__ std::uint64_t number() const { return before_ + 1; }
  __device__ std::uint32_t position() const { return chunks_ + static_cast<std::uint32_t>(count_); }
  __device__ std::uint64_t flag() const { return Tile::flag_of(count_ + box_ + 1); }
  __device__ std::uint64_t* count_word() const {
    return global_pointer(message_.count) + kWordsOfCounter * blockIdx.x;
  }
  __device__ std::uint32_t* freed_word() const {
    return global_pointer(message_.freed) + blockIdx.x;
  }
  // Of this block's part of the message.
  __device__ std::uint32_t begin() const {
    return min(message_.part_bytes * blockIdx.x, message_.bytes);
  }
  __device__ std::uint32_t part_bytes() const {
    return min(message_.part_bytes, message_.bytes - begin());
  }
  __device__ bool exists() const { return blockIdx.x == 0 || part_bytes() > 0; }
  __device__ std::uint32_t tiles_of_part() const {
    return (kHeaderBytes + part_bytes() + Tile::kBytes - 1) / Tile::kBytes;
  }
  __device__ std::uint32_t boxes_of_part() const {
    return kMany ? (tiles_of_part() + message_.box_tiles - 1) / message_.box_tiles : 1;
  }
  // Of what is at `offset` in a tile, in the part; beyond its end for the header.
  __device__ static std::uint32_t at(std::uint32_t tile, std::uint32_t offset) {
    return tile * Tile::kBytes - kHeaderBytes + offset;
  }
  __device__ std::byte* data() const { return global_pointer(message_.data) + begin(); }
  // Of a tile of the part, in the box that it is in.
  __device__ std::byte* place_of(std::uint32_t tile) const {
    const std::uint32_t box =
        blockIdx.x * kP2pBoxes + static_cast<std::uint32_t>(count_ + box_) % kP2pBoxes;
    return global_pointer(message_.boxes) + std::uint64_t{box} * message_.box_bytes +
           (tile - first_of_box()) * Tile::kSpace;
  }
  __device__ std::uint32_t first_of_box() const { return kMany ? box_ * message_.box_tiles : 0; }

  // All loads are on their way before the first of them is waited for.
  __device__ __forceinline__ void load(std::uint32_t tile, Units& units) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      const std::uint32_t offset = at(tile + i, kWhole ? Tile::unit_offset() : Tile::offset());
      if (offset >= part_bytes()) continue;
      if constexpr (kWhole) {
        units[i] = load_data(reinterpret_cast<const Unit*>(data() + offset));
      } else {
        units[i] = load_any<Tile>(data() + offset, part_bytes() - offset);
      }
    }
  }

  // This warp's tiles of each box in turn, when there is credit. `units`: of the first of them.
  __device__ __forceinline__ bool send_boxes(std::uint32_t tiles, Units& units,
                                             std::uint32_t freed) {
    for (std::uint32_t first = 0; first < tiles; first += message_.box_tiles, ++box_) {
      const std::uint32_t end = min(tiles, first + message_.box_tiles);
      for (std::uint32_t tile = first + warp() * kTiles; tile < end; tile += stride()) {
        if (tile != warp() * kTiles) load(tile, units);
        if (!send(tile, units, freed, end)) return false;
      }
    }
    return true;
  }
  // By the whole block, which frees each box.
  __device__ __forceinline__ bool receive_boxes(std::uint32_t tiles) {
    for (std::uint32_t first = 0; first < tiles; first += message_.box_tiles, ++box_) {
      const std::uint32_t end = min(tiles, first + message_.box_tiles);
      bool ok = true;
      for (std::uint32_t tile = first + warp() * kTiles; ok && tile < end; tile += stride()) {
        ok = receive(tile, end);
      }
      if (!block_all(ok)) return false;
      if (threadIdx.x == 0) free_box();
    }
    return true;
  }
  // What was in the box has been loaded, since its epoch was looked at.
  __device__ void free_box() const {
    store_relaxed(freed_word(), static_cast<std::uint32_t>(count_ + box_ + 1));
  }

  // The tiles from `tile` on that are before `end`.
  __device__ __forceinline__ bool send(std::uint32_t tile, const Units& loaded,
                                       std::uint32_t& freed, std::uint32_t end) {
    const auto target = static_cast<std::uint32_t>(count_ + box_ + 1 - kP2pBoxes);
    bool ok = true;
    if (!has_reached(freed, target)) ok = await_box(target, freed);
    if (!Tile::all(ok)) return false;
    const BoxHeader header{message_.bytes, position(), message_.tag};
    std::byte* const place = place_of(tile);
#pragma unroll
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      if (kMany && tile + i >= end) break;
      Unit unit = Tile::own_part(loaded[i]);
      if (i == 0) unit = either(is_header(tile), __builtin_bit_cast(Unit, header), unit);
      Tile::converge();
      Tile::send(place + i * Tile::kSpace, unit, flag());
    }
    return true;
  }
  __device__ bool await_box(std::uint32_t target, std::uint32_t& freed) const {
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      freed = load_relaxed(freed_word());
      if (has_reached(freed, target)) return true;
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      first_look = look_for_message(params_, number(), first_look, false, 0, 0);
      if (first_look == 0) return false;
    }
  }

  // The same of those that come.
  __device__ __forceinline__ bool receive(std::uint32_t tile, std::uint32_t end) const {
    Units units;
    std::byte* place = place_of(tile);
    keep_in_register(place);
    // Where there are fewer the last is looked at again: a load under a condition is waited for.
    const std::uint32_t last = end - 1 - tile;
    std::uint64_t first_look = 0;
    bool came = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      typename Tile::Arrival arrivals[kTiles];
#pragma unroll
      for (std::uint32_t i = 0; i < kTiles; ++i) {
        arrivals[i] = Tile::look(place + min(i, last) * Tile::kSpace);
      }
      bool here = true;
#pragma unroll
      for (std::uint32_t i = 0; i < kTiles; ++i) here = arrivals[i].has(flag(), &units[i]) && here;
      if (Tile::all(here)) {
        const bool is_believed = came || !Tile::kLoadsAgain;  // NOTE [Wires] in tile.cuh
        came = true;
        if (!is_believed) continue;
        if (is_expected(tile, units[0])) break;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      if (tile == 0 && has_other_header<Tile>(params_, place, flag(), position(), number())) {
        return false;
      }
      first_look = look_for_message(params_, number(), first_look,
                                    is_header(tile) && blockIdx.x == 0, chunks_, position());
      if (Tile::any(first_look == 0)) return false;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      if (kMany && tile + i >= end) break;
      store(tile + i, units[i]);
    }
    return true;
  }
  __device__ __forceinline__ void store(std::uint32_t tile, const Unit& unit) const {
    const std::uint32_t offset = at(tile, Tile::offset());
    if (is_header(tile) || offset >= part_bytes()) return;
    if constexpr (kWhole) {
      Tile::store_whole(data() + offset - Tile::offset(), unit);
    } else {
      store_any<Tile>(data() + offset, unit, part_bytes() - offset);
    }
  }
  // Whether the header that has come is that of the message; the same in all threads of a warp.
  __device__ bool is_expected(std::uint32_t tile, const Unit& unit) const {
    const auto header = __builtin_bit_cast(BoxHeader, unit);
    return Tile::all(!is_header(tile) ||
                     (header.position == position() && header.tag == message_.tag &&
                      header.bytes == message_.bytes));
  }

  const LoneMessageParams& params_;
  const LoneMessage message_;
  const bool alive_;
  const std::uint64_t before_;  // messages that had ended
  const std::uint64_t count_;   // boxes of this p2p channel before this message
  const std::uint32_t chunks_;
  std::uint32_t box_ = 0;  // of the part
};

}  // namespace symm
