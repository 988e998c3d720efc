// Messages in boxes (NOTE [Messages in boxes] in message_boxes.cuh) of which each warp has at most
// one tile, and which are the only ones of their peer, direction and tag channel in a launch: the
// same protocol straight on, as NOTE [Few tiles] in few_tiles.cuh. The other end may launch another
// kernel for the same message.
#pragma once

#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/one_box_params.hpp"
#include "kernels/gpu/wire/few_tiles_calls.cuh"
#include "kernels/gpu/wire/message.cuh"

namespace symm {

__device__ inline const OneBoxMessage& message_of(const OneBoxParams& params) {
  return params.messages[blockIdx.y];
}

// Reports that a message of another tag or size has come.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void report_other_message(
    const OneBoxParams& params, MessageHeader theirs, std::uint64_t number) {
  const OneBoxMessage& mine = message_of(params);
  const bool is_tag = theirs.tag != mine.tag;
  fail_group(*global_pointer(params.local), *global_pointer(params.page),
             is_tag ? DeviceFault::kTagMismatch : DeviceFault::kCountMismatch, mine.peer, number,
             true, is_tag ? static_cast<std::uint64_t>(theirs.tag) : theirs.bytes,
             is_tag ? static_cast<std::uint64_t>(mine.tag) : mine.bytes);
}

// What a wait for message `number` does now and then; as look_up(). Looks for the message as chunks
// too (NOTE [Position of a message] in message.cuh), where `receives`.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD std::uint64_t look_for_message(
    const OneBoxParams& params, std::uint64_t number, std::uint64_t first_look, bool receives,
    std::uint32_t chunks, std::uint32_t position) {
  const OneBoxMessage& mine = message_of(params);
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

template <class Tile, bool kWhole>
class OneBox {
 public:
  __device__ __forceinline__ explicit OneBox(const OneBoxParams& params)
      : params_(params),
        message_(message_of(params)),
        alive_(load_relaxed(&global_pointer(params.local)->dead) == 0),
        before_(load_data(global_pointer(message_.ended))),
        count_(load_data(count_word())),
        chunks_(load_data(global_pointer(message_.chunks))) {}

  // False where the launch must end. By the whole block.
  __device__ __forceinline__ bool run() {
    const bool has_tile = exists() && warp() * Tile::kBytes < kHeaderBytes + part_bytes();
    Unit unit{};
    std::uint32_t freed = 0;
    if (message_.is_send) {
      freed = load_relaxed(freed_word());
      load(unit);
    }
    if (alive_ && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(global_pointer(message_.entered), number());
    }
    bool ok = alive_;
    if (has_tile) ok = Tile::all(ok) && (message_.is_send ? send(unit, freed) : receive());
    return block_all(ok);
  }

  __device__ __forceinline__ void end() const {
    if (threadIdx.x != 0) return;
    if (exists()) {
      store_data(count_word(), count_ + 1);
      // What was in the box has been loaded, since its epoch was looked at.
      if (!message_.is_send) store_relaxed(freed_word(), static_cast<std::uint32_t>(count_ + 1));
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
  static constexpr std::uint32_t kHeaderBytes = sizeof(BoxHeader);
  static constexpr std::uint32_t kWordsOfCounter = sizeof(P2pCounter) / sizeof(std::uint64_t);

  __device__ static std::uint32_t warp() { return threadIdx.x / kTileThreads; }
  __device__ static bool is_header() { return threadIdx.x == 0; }
  __device__ std::uint64_t number() const { return before_ + 1; }
  __device__ std::uint32_t position() const { return chunks_ + static_cast<std::uint32_t>(count_); }
  __device__ std::uint64_t flag() const { return Tile::flag_of(count_ + 1); }
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
  // Of this thread's unit, in the part; beyond its end for the header.
  __device__ static std::uint32_t at(std::uint32_t offset) {
    return warp() * Tile::kBytes - kHeaderBytes + offset;
  }
  __device__ std::byte* data() const { return global_pointer(message_.data) + begin(); }
  __device__ std::byte* tile() const {
    const std::uint32_t box =
        blockIdx.x * kP2pBoxes + static_cast<std::uint32_t>(count_) % kP2pBoxes;
    return global_pointer(message_.boxes) + std::uint64_t{box} * message_.box_bytes +
           warp() * Tile::kSpace;
  }

  __device__ __forceinline__ void load(Unit& unit) const {
    const std::uint32_t offset = at(kWhole ? Tile::unit_offset() : Tile::offset());
    if (offset >= part_bytes()) return;
    if constexpr (kWhole) {
      unit = load_data(reinterpret_cast<const Unit*>(data() + offset));
    } else {
      unit = load_any<Tile>(data() + offset, part_bytes() - offset);
    }
  }

  __device__ __forceinline__ bool send(const Unit& loaded, std::uint32_t freed) {
    const auto target = static_cast<std::uint32_t>(count_ + 1 - kP2pBoxes);
    bool ok = true;
    if (!has_reached(freed, target)) ok = await_box(target);
    if (!Tile::all(ok)) return false;
    Unit unit = Tile::own_part(loaded);
    const BoxHeader header{message_.bytes, position(), message_.tag};
    unit = either(is_header(), __builtin_bit_cast(Unit, header), unit);
    Tile::converge();
    Tile::send(tile(), unit, flag());
    return true;
  }
  __device__ bool await_box(std::uint32_t target) const {
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1; !has_reached(load_relaxed(freed_word()), target); ++polls) {
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      first_look = look_for_message(params_, number(), first_look, false, 0, 0);
      if (first_look == 0) return false;
    }
    return true;
  }

  __device__ __forceinline__ bool receive() const {
    Unit unit;
    std::byte* place = tile();
    keep_in_register(place);
    std::uint64_t first_look = 0;
    bool came = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      const bool here = Tile::receive(place, flag(), &unit);
      if (Tile::all(here)) {
        const bool is_believed = came || !Tile::kLoadsAgain;  // NOTE [Wires] in tile.cuh
        came = true;
        if (!is_believed) continue;
        if (is_expected(unit)) break;
        if (Tile::any(is_other(unit))) return false;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      first_look = look_for_message(params_, number(), first_look, is_header() && blockIdx.x == 0,
                                    chunks_, position());
      if (Tile::any(first_look == 0)) return false;
    }
    const std::uint32_t offset = at(Tile::offset());
    if (is_header() || offset >= part_bytes()) return true;
    if constexpr (kWhole) {
      Tile::store_whole(data() + offset - Tile::offset(), unit);
    } else {
      store_any<Tile>(data() + offset, unit, part_bytes() - offset);
    }
    return true;
  }
  // Whether the header that has come is that of the message; the same in all threads of a warp.
  __device__ bool is_expected(const Unit& unit) const {
    const auto header = __builtin_bit_cast(BoxHeader, unit);
    return Tile::all(!is_header() || (header.position == position() && header.tag == message_.tag &&
                                      header.bytes == message_.bytes));
  }
  // Whether it is that of another one in its place, which is reported.
  __device__ bool is_other(const Unit& unit) const {
    const auto header = __builtin_bit_cast(BoxHeader, unit);
    if (!is_header() || header.position != position()) return false;
    report_other_message(params_, {header.bytes, header.tag}, number());
    return true;
  }

  const OneBoxParams& params_;
  const OneBoxMessage& message_;
  const bool alive_;
  const std::uint64_t before_;  // messages that had ended
  const std::uint64_t count_;   // boxes of this p2p channel so far
  const std::uint32_t chunks_;
};

}  // namespace symm
