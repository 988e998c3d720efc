// send and recv: messages through the tag channels of each pair of ranks.
//
// Most messages go through boxes (NOTE [Messages in boxes] in message_boxes.cuh), others as chunks
// (NOTE [Chunks of messages] in message_chunks.cuh). Equally many blocks serve each peer, direction
// and tag channel of a launch, so its sends and recvs never wait for each other, and each takes its
// messages in their order. Of those blocks the first DeviceLayout::p2p_channels, or as many as
// there are, serve a p2p channel each, and the warps of all of them take chunks.
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/lone_message_params.hpp"
#include "kernels/gpu/wire/lone_message.cuh"
#include "kernels/gpu/wire/message_boxes.cuh"
#include "kernels/gpu/wire/message_chunks.cuh"

namespace symm {

namespace {

constexpr unsigned kWarps = kTransferThreads / kWarpThreads;  // of a block

// By one thread of a block that has done its part: true in the last of those that serve `messages`,
// which then sees what the others did before, but where they have only filled or emptied boxes.
template <class Way>
__device__ bool is_last_of(const GroupParams& group, int blocks, const TransferGroup& messages,
                           int direction) {
  if (blocks == 1) return true;
  std::uint32_t* ticket =
      &local_state(group).tag_tickets[messages.peer][messages.tag_channel][direction];
  if constexpr (Way::kHasChunks) device_fence();
  if (device_fetch_add(ticket, 1u) + 1 != static_cast<unsigned>(blocks)) return false;
  store_data(ticket, 0);
  return true;
}

// Where blocks look at what others count, the last of them counts for all.
template <class Way>
__device__ void count_parts(const TransferParams& call, const TransferGroup& messages,
                            const MessageMemory& memory, std::uint32_t next_chunk) {
  if constexpr (Way::kHasChunks) memory.chunks() = next_chunk;
  if constexpr (Way::kHasChunks && Way::kHasBoxes) {
    for (int channel = 0; channel < call.channels; ++channel) {
      for (int i = messages.first; i < messages.first + messages.count; ++i) {
        const TransferItem& item = call.items[i];
        if (memory.goes_in_boxes(item)) {
          memory.boxes(channel) += Way::Boxes::boxes_of(memory, item, channel);
        }
      }
    }
  }
}

// How messages go: the boxes for short ones, and whether there are such, and others.
template <class Tile, bool kMany, bool kBoxes, bool kChunks>
struct Way {
  using Boxes = MessageBoxes<Tile, kMany>;
  static constexpr bool kHasBoxes = kBoxes;
  static constexpr bool kHasChunks = kChunks;
};

// False where the launch must end. What the rest depends on is loaded first, and together.
template <class Way>
__device__ bool serve(const GroupParams& group, const TransferParams& call,
                      const WaitParams& wait) {
  constexpr bool kHasBoxes = Way::kHasBoxes;
  constexpr bool kHasChunks = Way::kHasChunks;
  const auto blocks = static_cast<unsigned>(call.blocks);
  const TransferGroup& messages = call.groups[blockIdx.x / blocks];
  const unsigned block = blockIdx.x % blocks;
  const int direction = messages.is_send ? 0 : 1;
  LocalState& local = local_state(group);
  const bool alive = load_relaxed(&local.dead) == 0;
  std::uint64_t& ended = local.messages[messages.peer][messages.tag_channel][direction];
  const std::uint64_t before = ended;
  const MessageMemory memory(group, messages);
  const bool serves_boxes = kHasBoxes && block < static_cast<unsigned>(call.channels);
  typename Way::Boxes boxes(memory, serves_boxes ? static_cast<int>(block) : 0);
  if (kHasBoxes && messages.is_send) boxes.look_for_credit();
  MessageChunks chunks(memory, block * kWarps + threadIdx.x / kWarpThreads, blocks * kWarps);

  DevicePage& page = page_of(group);
  auto& entered = page.messages_entered[messages.peer][messages.tag_channel][direction];
  if (alive && block == 0 && threadIdx.x == 0) store_relaxed(&entered, before + messages.count);
  Waiter waiter(group, wait, before + 1, true);
  bool ok = block_all(alive);
  std::uint32_t boxes_before = 0;
  for (int i = 0; ok && i < messages.count; ++i) {
    const TransferItem& item = call.items[messages.first + i];
    const bool in_boxes = kHasBoxes && (!kHasChunks || memory.goes_in_boxes(item));
    if (!in_boxes) {
      if constexpr (kHasChunks) {
        ok = messages.is_send ? chunks.send(item, boxes_before, waiter)
                              : chunks.receive(item, boxes_before, waiter);
      }
      if constexpr (kHasBoxes) ok = block_all(ok);
    } else if (serves_boxes) {
      ok = messages.is_send ? boxes.send(item, chunks.next(), waiter)
                            : boxes.receive(item, chunks.next(), waiter);
    }
    if (kHasChunks && in_boxes) boxes_before += Way::Boxes::boxes_of(memory, item, 0);
    waiter.next();
  }
  if (kHasChunks && !kHasBoxes) ok = block_all(ok);
  if (!ok) return false;
  if constexpr (!kHasChunks) boxes.end();
  if (threadIdx.x == 0 && is_last_of<Way>(group, call.blocks, messages, direction)) {
    count_parts<Way>(call, messages, memory, chunks.next());
    ended = before + messages.count;
    auto& completed = page.messages_completed[messages.peer][messages.tag_channel][direction];
    store_relaxed(&completed, before + messages.count);
  }
  return true;
}

// NOTE [Poison], for a block that serves messages.
__device__ void poison_received(const TransferParams& call) {
  const TransferGroup& messages = call.groups[blockIdx.x / static_cast<unsigned>(call.blocks)];
  if (!call.poisons || messages.is_send) return;
  for (int i = messages.first; i < messages.first + messages.count; ++i) {
    fill_poison(call.items[i].data, call.items[i].bytes, poison_of(call.dtypes[i]));
  }
}

// The blocks after those that serve messages copy the message of this rank to itself.
__device__ void copy_own(const DeviceCopy& own, unsigned first) {
  const unsigned blocks = gridDim.x - first;
  const std::uint64_t even = align_up((own.bytes + blocks - 1) / blocks, kCacheLine);
  const std::uint64_t begin = min_size(even * (blockIdx.x - first), own.bytes);
  block_copy(static_cast<std::byte*>(own.destination) + begin,
             static_cast<const std::byte*>(own.source) + begin, min_size(even, own.bytes - begin));
}

// Each pair by its own tiles.
struct AnyWay {};
template <>
__device__ bool serve<AnyWay>(const GroupParams& group, const TransferParams& call,
                              const WaitParams& wait) {
#if SYMM_LINES
  if (call.groups[blockIdx.x / static_cast<unsigned>(call.blocks)].wire == WireKind::kLine) {
    return serve<Way<LineTile, true, true, true>>(group, call, wait);
  }
#endif
  return serve<Way<LLTile, false, true, true>>(group, call, wait);
}

template <class Way, unsigned kThreads>
__global__ void SYMM_LAUNCH_BOUNDS(kThreads, 1024 / kThreads)
    transfer_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                    const SYMM_GRID_CONSTANT TransferParams call,
                    const SYMM_GRID_CONSTANT WaitParams wait) {
  const auto serving = static_cast<unsigned>(call.group_count * call.blocks);
  if (blockIdx.x >= serving) {
    copy_own(call.own, serving);
    return;
  }
  if (!serve<Way>(group, call, wait)) poison_received(call);
}

#if SYMM_LINES
template <bool kWhole, bool kMany>
__global__ void SYMM_LAUNCH_BOUNDS((kMany ? kMostLoneWarps : kLineBoxWarps) * kTileThreads, 1)
    lone_message_kernel(const SYMM_GRID_CONSTANT LoneMessageParams params) {
  LoneMessageBlock<LineTile, kWhole, kMany> call(params);
  if (call.run()) {
    call.end();
    return;
  }
  const LoneMessage& message = message_of(params);
  if (!params.poisons || message.is_send) return;
  fill_poison(message.data, message.bytes, poison_of(message.dtype));
}
#endif

}  // namespace

LoneMessageKernels lone_message_kernels() {
#if SYMM_LINES
  return {reinterpret_cast<const void*>(&lone_message_kernel<true, false>),
          reinterpret_cast<const void*>(&lone_message_kernel<false, false>),
          reinterpret_cast<const void*>(&lone_message_kernel<true, true>),
          reinterpret_cast<const void*>(&lone_message_kernel<false, true>)};
#else
  return {};
#endif
}

const void* transfer_kernel_address(MessageForms forms) {
  const auto address = [](auto way) {
    return reinterpret_cast<const void*>(&transfer_kernel<decltype(way), kTransferThreads>);
  };
  using enum MessageForms;
  switch (forms) {
    case kLLBoxes:
      return address(Way<LLTile, false, true, false>{});
#if SYMM_LINES
    case kLineBoxes:
      return reinterpret_cast<const void*>(
          &transfer_kernel<Way<LineTile, false, true, false>, kLineBoxWarps * kTileThreads>);
    case kManyLineBoxes:
      return address(Way<LineTile, true, true, false>{});
#endif
    case kChunks:
      return address(Way<LLTile, false, false, true>{});
    default:
      break;
  }
  return address(AnyWay{});
}

}  // namespace symm
