// How a tile of data crosses to a peer: in stores that carry their epoch.
//
// NOTE [Wires]
// A sender stores data and the epoch of its block together into the receiver's box, and the
// receiver polls until it finds the epoch there: no fence, no barrier, no second message. A tile is
// what 32 threads store at once; each of them has one unit of 16 bytes of it, or half of one.
//
// LLTile   every word of 8 bytes is stored and loaded as one: 4 bytes of data and the lower half of
//          the epoch modulo 2^32 - 1. (NCCL's protocol LL, "low latency".) Any GPU.
// LineTile a line of 128 bytes has 120 bytes of data, and the epoch at its end. Eight neighbouring
//          threads store it with one instruction, and it is seen whole or not at all by a load that
//          comes after one that has seen its epoch; that one is not believed itself, since a load
//          of eight threads may be served in parts (NCCL's LL128 loads again as well). This is no
//          promise of PTX but of the hardware, where all links are NVLink; so only groups whose
//          pairs of ranks all have NVLink, or one GPU, use it. A tile is four lines: 28 units in
//          the first seven threads of each, and two more units whose halves are in the eighth.
//
// A group uses one of them for all of its life, since data of one may look like an epoch of the
// other.
#pragma once

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {

// The word of a line, of 8 bytes, that has the epoch.
inline constexpr int kLineFlagWord = 15;

__device__ inline Unit unit_from(std::uint64_t low, std::uint64_t high) {
  return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
           static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
}

__device__ inline unsigned tile_thread() { return threadIdx.x % kTileThreads; }

struct LLTile {
  static constexpr WireKind kKind = WireKind::kLL;
  static constexpr std::uint32_t kBytes = wire_tile(WireKind::kLL).bytes;
  static constexpr std::uint32_t kSpace = wire_tile(WireKind::kLL).space;
  // The epoch as tiles carry it, never 0, which is in boxes that were never written. It repeats.
  static constexpr bool kEpochsRepeat = true;
  static constexpr bool kLoadsAgain = false;  // what has arrived, once the epoch was seen
  static constexpr int kFlagWord = 0;         // one of 8 bytes that has the epoch
  __device__ static std::uint64_t flag_of(std::uint64_t epoch) { return epoch % 0xffff'ffffu + 1; }

  // Threads poll each by itself.
  __device__ static void converge() {}
  __device__ static bool all(bool condition) { return condition; }
  __device__ static bool any(bool condition) { return condition; }

  // Of this thread's unit in the tile's data.
  __device__ static std::uint32_t offset() { return tile_thread() * kUnitBytes; }
  __device__ static Unit load(const std::byte* source, std::uint32_t left) {
    return load_unit(source, min_size(left, kUnitBytes));
  }
  __device__ static void store(std::byte* destination, Unit unit, std::uint32_t left) {
    store_unit(destination, unit, min_size(left, kUnitBytes));
  }

  // In shared memory, as load() would find it: `tile` has kBytes.
  __device__ static void keep(Unit* tile, const Unit& unit) {
    store_shared(tile + tile_thread(), unit);
  }

  // Halves of units stand apart, so that each store of the threads is contiguous.
  __device__ static void send(std::byte* tile, Unit unit, std::uint64_t flag) {
    std::uint64_t* words = words_at(tile);
    store_relaxed_pair(words, packed(unit.words[0], flag), packed(unit.words[1], flag));
    store_relaxed_pair(words + kSpace / 16, packed(unit.words[2], flag),
                       packed(unit.words[3], flag));
  }
  // True when this thread's unit has arrived.
  __device__ static bool receive(std::byte* tile, std::uint64_t flag, Unit* unit) {
    const std::uint64_t* words = words_at(tile);
    std::uint64_t w[4];
    load_relaxed_pair(words, &w[0], &w[1]);
    load_relaxed_pair(words + kSpace / 16, &w[2], &w[3]);
    bool here = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      here = here && (w[i] >> 32) == flag;
      unit->words[i] = static_cast<std::uint32_t>(w[i]);
    }
    return here;
  }

  // For elements as large as a unit.
  __device__ static Unit whole(Unit unit) { return unit; }
  __device__ static Unit own_part(Unit unit) { return unit; }

 private:
  __device__ static std::uint64_t* words_at(std::byte* tile) {
    return reinterpret_cast<std::uint64_t*>(tile) + 2 * tile_thread();
  }
  __device__ static std::uint64_t packed(std::uint32_t data, std::uint64_t flag) {
    return (flag << 32) | data;
  }
};

#if SYMM_LINES

// Every function is called by all threads of a warp together.
struct LineTile {
  static constexpr WireKind kKind = WireKind::kLine;
  static constexpr std::uint32_t kBytes = wire_tile(WireKind::kLine).bytes;
  static constexpr std::uint32_t kSpace = wire_tile(WireKind::kLine).space;
  static constexpr bool kEpochsRepeat = false;
  static constexpr bool kLoadsAgain = true;
  static constexpr int kFlagWord = kLineFlagWord;
  __device__ static std::uint64_t flag_of(std::uint64_t epoch) { return epoch; }

  // Before a send or a receive, so that each is one instruction of the warp.
  __device__ static void converge() { __syncwarp(); }
  __device__ static bool all(bool condition) { return __all_sync(~0u, condition) != 0; }
  __device__ static bool any(bool condition) { return __any_sync(~0u, condition) != 0; }

  __device__ static std::uint32_t offset() {
    const std::uint32_t line = tile_thread() / 8;
    return ends_line() ? 28 * kUnitBytes + line * kHalf
                       : (line * 7 + tile_thread() % 8) * kUnitBytes;
  }
  __device__ static Unit load(const std::byte* source, std::uint32_t left) {
    if (!ends_line()) return load_unit(source, min_size(left, kUnitBytes));
    if (left < kHalf || !is_aligned(source, kHalf)) {
      return load_odd_unit(source, min_size(left, kHalf));
    }
    const auto half = load_data(reinterpret_cast<const std::uint64_t*>(source));
    return {{static_cast<std::uint32_t>(half), static_cast<std::uint32_t>(half >> 32), 0, 0}};
  }
  __device__ static void store(std::byte* destination, Unit unit, std::uint32_t left) {
    if (!ends_line()) {
      store_unit(destination, unit, min_size(left, kUnitBytes));
    } else if (left < kHalf || !is_aligned(destination, kHalf)) {
      store_odd_unit(destination, unit, min_size(left, kHalf));
    } else {
      store_data(reinterpret_cast<std::uint64_t*>(destination), low_half(unit));
    }
  }

  // The same of a tile that is whole and aligned; `source` and `destination` are its begin. Two
  // threads load the same unit, of which each keeps its half.
  __device__ static Unit load_whole(const std::byte* source) {
    return own_part(load_data(reinterpret_cast<const Unit*>(source + unit_offset())));
  }
  // Of the unit that has this thread's part.
  __device__ static std::uint32_t unit_offset() { return offset() / kUnitBytes * kUnitBytes; }
  __device__ static void store_whole(std::byte* destination, const Unit& unit) {
    if (ends_line()) {
      store_data(reinterpret_cast<std::uint64_t*>(destination + offset()), low_half(unit));
    } else {
      store_data(reinterpret_cast<Unit*>(destination + offset()), unit);
    }
  }

  __device__ static void keep(Unit* tile, const Unit& unit) {
    const std::uint32_t place = offset();
    if (ends_line()) {
      store_shared(reinterpret_cast<std::uint64_t*>(tile) + place / kHalf, low_half(unit));
    } else {
      store_shared(tile + place / kUnitBytes, unit);
    }
  }

  __device__ static void send(std::byte* tile, Unit unit, std::uint64_t flag) {
    store_relaxed_pair(words_at(tile), low_half(unit), ends_line() ? flag : high_half(unit));
  }
  // True in the threads whose line may have arrived: it has where the eighth finds the epoch.
  __device__ static bool receive(std::byte* tile, std::uint64_t flag, Unit* unit) {
    return look(tile).has(flag, unit);
  }
  // The same in two steps: a thread stands still in the second.
  struct Arrival {
    std::uint64_t low;
    std::uint64_t high;

    __device__ bool has(std::uint64_t flag, Unit* unit) const {
      *unit = unit_from(low, high);
      return !ends_line() || high == flag;
    }
  };
  __device__ static Arrival look(std::byte* tile) {
    Arrival found;
    load_relaxed_pair(words_at(tile), &found.low, &found.high);
    return found;
  }

  // The unit of which this thread may have half only, the other half being eight threads away.
  __device__ static Unit whole(Unit unit) {
    const std::uint32_t other[] = {__shfl_xor_sync(~0u, unit.words[0], 8),
                                   __shfl_xor_sync(~0u, unit.words[1], 8)};
    if (!ends_line()) return unit;
    return has_upper_half() ? Unit{{other[0], other[1], unit.words[0], unit.words[1]}}
                            : Unit{{unit.words[0], unit.words[1], other[0], other[1]}};
  }
  __device__ static Unit own_part(Unit unit) {
    return ends_line() && has_upper_half() ? Unit{{unit.words[2], unit.words[3], 0, 0}} : unit;
  }
  // A unit of which that is the own part.
  __device__ static Unit with_own_part(Unit unit) {
    return ends_line() && has_upper_half() ? Unit{{0, 0, unit.words[0], unit.words[1]}} : unit;
  }

 private:
  static constexpr std::uint32_t kHalf = 8;

  __device__ static bool ends_line() { return tile_thread() % 8 == 7; }
  __device__ static bool has_upper_half() { return (tile_thread() / 8) % 2 == 1; }
  __device__ static std::uint64_t low_half(Unit unit) {
    return unit.words[0] | static_cast<std::uint64_t>(unit.words[1]) << 32;
  }
  __device__ static std::uint64_t high_half(Unit unit) {
    return unit.words[2] | static_cast<std::uint64_t>(unit.words[3]) << 32;
  }
  __device__ static std::uint64_t* words_at(std::byte* tile) {
    return reinterpret_cast<std::uint64_t*>(tile) + 2 * tile_thread();
  }
};

#endif

}  // namespace symm
