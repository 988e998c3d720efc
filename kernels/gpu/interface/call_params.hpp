// The parameters of a kernel. Plain data; pointers are device addresses of this process.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// The same for every launch of a group on one rank.
struct GroupParams {
  std::int32_t rank;
  std::int32_t world_size;
  DevicePage* page;  // of this rank
  DeviceLayout layout;
  std::byte* segments[kMaxDeviceRanks];  // by rank; null where not mapped yet
};

// Limits of a launch's waits.
struct WaitParams {
  std::uint64_t timeout_ns;
  // Failed polls between two tests of the abort word and the clock; a power of two.
  std::uint32_t poll_period;
};

struct CollectiveParams {
  CollectiveKind kind;
  bool premultiplies;  // PREMUL_SUM: factors count
  bool ends_call;      // the last of the launches of a call
  std::int32_t root;
  std::int32_t divisor;  // AVG: world size; else 0
  std::uint32_t element_bytes;
  Dtype dtype;  // this and op: the compiled rule (ReductionRule) of a reduction
  ReduceOp op;
  const void* input;
  void* output;
  std::uint64_t count;      // elements, as in CollectiveArgs
  BufferLocation location;  // that all ranks must have alike; 0: they compare none
  double factor;
  std::uint64_t poison;         // NOTE [Poison] in poison.cuh; 0: none
  Part parts[kMaxDeviceRanks];  // input_parts or output_parts, whichever the kind has
};

// A copy in memory that this GPU maps; 0 bytes for none.
struct DeviceCopy {
  const void* source;
  void* destination;
  std::uint64_t bytes;
};

// Messages of one peer, direction and tag channel, in order: ops [first, first + count).
struct TransferGroup {
  std::int8_t peer;
  std::int8_t is_send;
  std::int8_t tag_channel;
  WireKind wire;  // of the pair
  std::uint16_t first;
  std::uint16_t count;

  // clang-tidy 14 takes the comparison with 0 that the compiler writes for a null pointer.
  auto operator<=>(const TransferGroup&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct TransferItem {
  void* data;
  std::uint64_t bytes;
  std::int64_t tag;
};

inline constexpr int kMaxTransferItems = 96;

// How the messages of a launch go, for which there are kernels that take less time.
enum class MessageForms : std::uint8_t {
  kLLBoxes,
  kLineBoxes,  // one of each p2p channel
  kManyLineBoxes,
  kChunks,
  kAny,
};
inline constexpr int kMessageFormsCount = 5;
// Threads of a block that serves messages, and its warps where they have 32 threads (AMD's: half).
inline constexpr unsigned kTransferThreads = 512;  // at most
inline constexpr unsigned kTransferWarps = kTransferThreads / 32;
// Those of kLineBoxes: one for each tile that a message of 256 KiB has in a box.
inline constexpr unsigned kLineBoxWarps = 20;

struct TransferParams {
  std::int16_t group_count;
  std::int16_t channels;  // p2p channels that the short ones need; 0 where there are none
  std::int16_t blocks;    // of a group, at least `channels`; each end has its own number
  std::int16_t threads;   // of a block
  MessageForms forms;
  bool poisons;
  DeviceCopy own;  // a message of this rank to itself
  TransferGroup groups[kMaxTransferItems];
  TransferItem items[kMaxTransferItems];
  Dtype dtypes[kMaxTransferItems];
};

// The most sources of a fold.
inline constexpr int kMostFolded = 256;

// A combination of sources in this GPU's memory, without peers (fold_kernel.cuh).
struct FoldParams {
  std::int32_t world_size;  // sources
  std::int32_t divisor;     // AVG; else 0
  bool premultiplies;       // never
  Dtype dtype;              // this and op: the compiled rule
  ReduceOp op;
  std::uint32_t element_bytes;
  void* result;
  std::uint64_t count;           // elements of the rule
  std::uint64_t block_elements;  // of one block
  const void* sources[kMostFolded];
};

// Threads of a block of a multimem kernel.
inline constexpr int kMultimemThreads = 512;

// The parameters of a multimem kernel (NOTE [Multimem] in multimem_kernels.cuh) besides those of
// every collective. CollectiveParams::location is then that of the output, for reduce_scatter of
// the input. all_reduce has two locations: `factor` holds the bits of the input's, so that the
// ranks compare both.
struct MultimemParams {
  const std::byte* input_multicast;
  std::byte* output_multicast;
  // By rank, the memory of the multicast addresses: for the end of a message that does not fill 16
  // bytes.
  const std::byte* inputs[kMaxDeviceRanks];
  std::byte* outputs[kMaxDeviceRanks];
};

}  // namespace symm
