// Longer messages: chunks through slots, each by one warp.
//
// NOTE [Chunks of messages]
// The chunks of all messages of one peer, direction and tag channel are numbered from the group's
// start, modulo 2^32. Chunk n goes through slot n modulo their number, in the receiver's segment:
// its sender stores it, then size and tag of its message, then n + 1 and the message's position
// into the slot's `filled`; its receiver stores n + 1 into the sender's `freed`. A slot thus holds
// one chunk at a time, and has words of its own, so chunks may come in any order.
//
// The warps of a launch take the chunks in turns, each those of its own in their order. How many
// warps there are is each end's own affair, so a launch with many messages can have fewer blocks
// for each. Each warp waits, copies, fences and posts for itself, as in a lane (NOTE [Lanes] in
// lane.cuh).
//
// Progress: of all chunks that are not received yet, the one with the smallest number can be sent
// and received: the chunk before it in its slot has a smaller number, and its two warps have done
// all of theirs that do. All blocks of a launch are resident.
#pragma once

#include "kernels/gpu/wire/chunk.cuh"
#include "kernels/gpu/wire/message.cuh"

namespace symm {

class MessageChunks {
 public:
  // `warp` of `warps`, of the launch's for these messages.
  __device__ MessageChunks(const MessageMemory& memory, unsigned warp, unsigned warps)
      : memory_(memory),
        warp_(warp),
        warps_(warps),
        first_(memory.chunks()),
        first_box_(memory.boxes(0)) {}

  // This warp's chunks of a message. `boxes_before`: of the first p2p channel that messages before
  // this one in the launch took. False where the launch must end.
  __device__ bool send(const TransferItem& item, std::uint32_t boxes_before, Waiter& waiter) {
    const std::uint32_t position = position_after(boxes_before);
    return each_chunk(item, [&](std::byte* data, std::uint32_t bytes, std::uint32_t number) {
      if (!warp_all(warp_thread() != 0 || await_slot(number, waiter))) return false;
      warp_copy(memory_.peer_slot(number), data, bytes);
      warp_barrier();
      if (warp_thread() == 0) post_chunk(item, number, position);
      return true;
    });
  }
  __device__ bool receive(const TransferItem& item, std::uint32_t boxes_before, Waiter& waiter) {
    const std::uint32_t position = position_after(boxes_before);
    return each_chunk(item, [&](std::byte* data, std::uint32_t bytes, std::uint32_t number) {
      if (!warp_all(warp_thread() != 0 ||
                    await_chunk(item, number, position, boxes_before, waiter))) {
        return false;
      }
      warp_copy(data, memory_.own_slot(number), bytes);
      warp_barrier();
      if (warp_thread() == 0) store_release(&memory_.peer_signal(number).freed, number + 1);
      return true;
    });
  }

  // The number of the next message's first chunk.
  __device__ std::uint32_t next() const { return first_ + done_; }

 private:
  __device__ std::uint32_t position_after(std::uint32_t boxes_before) const {
    return next() + static_cast<std::uint32_t>(first_box_) + boxes_before;
  }

  // `step(data, bytes, number)` for each chunk that is this warp's.
  template <class Step>
  __device__ __forceinline__ bool each_chunk(const TransferItem& item, const Step& step) {
    const MessageCut cut = memory_.layout().message_cut(item.bytes, memory_.tag_channel());
    const std::uint32_t message = done_;
    done_ += cut.chunks;
    for (std::uint32_t i = (warp_ + warps_ - message % warps_) % warps_; i < cut.chunks;
         i += warps_) {
      const std::uint64_t offset = std::uint64_t{i} * cut.chunk;
      const auto bytes = static_cast<std::uint32_t>(min_size(item.bytes - offset, cut.chunk));
      if (!step(static_cast<std::byte*>(item.data) + offset, bytes, first_ + message + i)) {
        return false;
      }
    }
    return true;
  }

  // By one thread, as all that follows.
  __device__ bool await_slot(std::uint32_t number, Waiter& waiter) const {
    const std::uint32_t* const freed = &memory_.own_signal(number).freed;
    const std::uint32_t target = number + 1 - memory_.layout().message_slots_of_tag;
    return waiter.wait(memory_.peer(), [=] { return counter_reached(freed, target); });
  }
  __device__ void post_chunk(const TransferItem& item, std::uint32_t number,
                             std::uint32_t position) const {
    MessageSignal& theirs = memory_.peer_signal(number);
    store_relaxed_pair(reinterpret_cast<std::uint64_t*>(&theirs.header), item.bytes,
                       static_cast<std::uint64_t>(item.tag));
    store_release(&theirs.filled, filled_with(number, position));
  }

  // False too, and reported, where another message has come.
  __device__ bool await_chunk(const TransferItem& item, std::uint32_t number,
                              std::uint32_t position, std::uint32_t boxes_before,
                              Waiter& waiter) const {
    const MessageSignal& signal = memory_.own_signal(number);
    const MessageHeader expected{item.bytes, item.tag};
    MessageHeader header = expected;
    std::uint32_t polls = 0;
    const std::uint64_t filled = filled_with(number, position);
    const bool came = waiter.wait(memory_.peer(), [&] {
      if (has_chunk(signal, filled)) return true;
      pause_poll();
      if (++polls % kOtherFormPeriod != 0) return false;
      header = message_in_boxes(expected, position, boxes_before);
      return header.bytes != item.bytes;
    });
    if (!came) return false;
    if (header.bytes == item.bytes) header = header_of(signal);
    return matches(header, item, memory_.peer(), waiter, true);
  }
  // That has come in place of the long one.
  __device__ MessageHeader message_in_boxes(const MessageHeader& expected, std::uint32_t position,
                                            std::uint32_t boxes_before) const {
    if (memory_.layout().p2p_box_part == 0) return expected;
    const std::uint64_t count = first_box_ + boxes_before;
    return header_in(memory_.own_box(0, count), memory_.wire(), count, position, expected);
  }

  const MessageMemory& memory_;
  const unsigned warp_;
  const unsigned warps_;
  const std::uint32_t first_;  // chunks before the launch, and boxes of the first p2p channel
  const std::uint64_t first_box_;
  std::uint32_t done_ = 0;  // chunks of the launch's messages so far, of all warps
};

}  // namespace symm
