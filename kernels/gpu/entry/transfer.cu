// send, recv and all_to_all: messages through lanes.
//
// NOTE [Lanes]
// A lane leads from one rank to another and has kLaneSlots slots in the receiver's segment. The
// sender stores a piece into the next free slot and then the count of filled slots into the
// receiver's LaneSignal; the receiver copies it out and stores the count of freed slots into the
// sender's. Both counts only grow and live in device memory. A message is cut into kBlocksPerLane
// equal parts, one a lane of its group; the first lane also carries its size and tag, so it takes
// at least one slot even of an empty message. A block serves one lane and one direction, so sends
// and recvs of one launch never wait for each other, and the receiver's blocks free what the
// sender's fill.
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

constexpr int kTransferThreads = 512;

// Before the data of a slot.
struct alignas(16) PieceHeader {
  std::uint64_t bytes;  // of the whole message
  std::int64_t tag;
};

struct LanePart {
  std::byte* data;
  std::uint64_t bytes;
  bool first;  // carries the header, and takes a slot in any case
};

// The part of a message that lane `lane` of its group carries.
__device__ LanePart lane_part(const TransferItem& item, int lane) {
  const std::uint64_t even =
      align_up((item.bytes + kBlocksPerLane - 1) / kBlocksPerLane, kCacheLine);
  const std::uint64_t begin = min_size(even * static_cast<std::uint64_t>(lane), item.bytes);
  return {static_cast<std::byte*>(item.data) + begin, min_size(even, item.bytes - begin),
          lane == 0};
}

// One lane in one direction, served by a block.
class Lane {
 public:
  __device__ Lane(const GroupParams& group, const TransferGroup& messages, int lane, Waiter& waiter)
      : group_(group),
        waiter_(waiter),
        peer_(messages.peer),
        lane_(messages.lane_group * kBlocksPerLane + lane),
        piece_bytes_(group.layout.lane_bytes - sizeof(PieceHeader)),
        counter_(messages.is_send ? local_state(group).lanes[peer_][lane_].sent
                                  : local_state(group).lanes[peer_][lane_].received),
        count_(counter_) {}

  __device__ bool send(const TransferItem& item, const LanePart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      const std::uint32_t* freed = &signal(group_.rank, peer_).freed;
      if (!wait_for(freed, count_ + 1 - kLaneSlots)) return false;
      std::byte* slot = slot_at(peer_, group_.rank, count_);
      if (threadIdx.x == 0) *reinterpret_cast<PieceHeader*>(slot) = {item.bytes, item.tag};
      block_copy(slot + sizeof(PieceHeader), part.data + i * piece_bytes_, bytes_of(part, i));
      release_before_barrier();
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).filled, count_ + 1);
      }
    }
    return true;
  }

  __device__ bool receive(const TransferItem& item, const LanePart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      const std::uint32_t* filled = &signal(group_.rank, peer_).filled;
      if (!wait_for(filled, count_ + 1)) return false;
      const std::byte* slot = slot_at(group_.rank, peer_, count_);
      if (part.first && i == 0 && !matches(*reinterpret_cast<const PieceHeader*>(slot), item)) {
        return false;
      }
      block_copy(part.data + i * piece_bytes_, slot + sizeof(PieceHeader), bytes_of(part, i));
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).freed, count_ + 1);
      }
    }
    return true;
  }

  // After the last message.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x == 0) counter_ = count_;
  }

 private:
  // By the whole block; the same verdict in every thread.
  __device__ bool matches(const PieceHeader& header, const TransferItem& item) {
    if (header.tag != item.tag) {
      if (threadIdx.x == 0) {
        waiter_.fail(DeviceFault::kTagMismatch, peer_, static_cast<std::uint64_t>(header.tag),
                     static_cast<std::uint64_t>(item.tag));
      }
      return false;
    }
    if (header.bytes != item.bytes) {
      if (threadIdx.x == 0) {
        waiter_.fail(DeviceFault::kCountMismatch, peer_, header.bytes, item.bytes);
      }
      return false;
    }
    return true;
  }

  __device__ std::uint64_t pieces_of(const LanePart& part) const {
    const std::uint64_t full = (part.bytes + piece_bytes_ - 1) / piece_bytes_;
    return full == 0 && part.first ? 1 : full;
  }
  __device__ std::size_t bytes_of(const LanePart& part, std::uint64_t piece) const {
    const std::uint64_t begin = piece * piece_bytes_;
    return part.bytes > begin ? min_size(piece_bytes_, part.bytes - begin) : 0;
  }

  __device__ bool wait_for(const std::uint32_t* counter, std::uint32_t target) {
    const bool ok =
        threadIdx.x != 0 || waiter_.wait(peer_, [=] { return counter_reached(counter, target); });
    return block_all(ok);
  }

  // In `owner`'s segment, what concerns this lane and `other`.
  __device__ LaneSignal& signal(int owner, int other) const {
    auto* signals =
        reinterpret_cast<LaneSignal*>(segment_of(group_, owner) + group_.layout.lane_signals);
    return signals[other * kLanes + lane_];
  }
  __device__ std::byte* slot_at(int owner, int sender, std::uint32_t count) const {
    const std::uint64_t index =
        (static_cast<std::uint64_t>(sender) * kLanes + static_cast<std::uint64_t>(lane_)) *
            kLaneSlots +
        count % kLaneSlots;
    return segment_of(group_, owner) + group_.layout.lanes + index * group_.layout.lane_bytes;
  }

  const GroupParams& group_;
  Waiter& waiter_;
  const int peer_;
  const int lane_;
  const std::uint64_t piece_bytes_;
  std::uint32_t& counter_;  // in device memory
  std::uint32_t count_;     // slots filled, or emptied, so far
};

// By one thread of a block that has served its lane: the last of the group's blocks counts.
__device__ void end_messages(const GroupParams& group, const TransferGroup& messages) {
  LocalState& local = local_state(group);
  const int direction = messages.is_send ? 0 : 1;
  std::uint32_t* ticket = &local.lane_tickets[messages.peer][messages.lane_group][direction];
  device_fence();
  if (device_fetch_add(ticket, 1u) + 1 != kBlocksPerLane) return;
  store_data(ticket, 0);
  std::uint64_t& ended = local.messages[messages.peer][messages.lane_group][direction];
  ended += messages.count;
  store_relaxed(&page_of(group).messages_completed[messages.peer][messages.lane_group][direction],
                ended);
}

__device__ bool serve_lane(const GroupParams& group, const TransferParams& call,
                           const WaitParams& wait) {
  const TransferGroup& messages = call.groups[blockIdx.x / kBlocksPerLane];
  const int lane_number = static_cast<int>(blockIdx.x % kBlocksPerLane);
  const int direction = messages.is_send ? 0 : 1;
  const std::uint64_t before =
      local_state(group).messages[messages.peer][messages.lane_group][direction];
  if (!call.collective && lane_number == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).messages_entered[messages.peer][messages.lane_group][direction],
                  before + messages.count);
  }
  Waiter waiter(group, wait, call.collective ? collective_number(group) : before + 1,
                !call.collective);
  Lane lane(group, messages, lane_number, waiter);
  for (int i = 0; i < messages.count; ++i) {
    const TransferItem& item = call.items[messages.first + i];
    const LanePart part = lane_part(item, lane_number);
    if (!(messages.is_send ? lane.send(item, part) : lane.receive(item, part))) return false;
    if (!call.collective) waiter.next();
  }
  lane.end();
  if (!call.collective && threadIdx.x == 0) end_messages(group, messages);
  return true;
}

// The blocks behind those of the lanes copy what this rank sends to itself.
__device__ void copy_own(const TransferParams& call) {
  const unsigned first = static_cast<unsigned>(call.group_count * kBlocksPerLane);
  const unsigned blocks = gridDim.x - first;
  const std::uint64_t even = align_up((call.own_bytes + blocks - 1) / blocks, kCacheLine);
  const std::uint64_t begin = min_size(even * (blockIdx.x - first), call.own_bytes);
  block_copy(static_cast<std::byte*>(call.own_output) + begin,
             static_cast<const std::byte*>(call.own_input) + begin,
             min_size(even, call.own_bytes - begin));
}

__global__ void SYMM_LAUNCH_BOUNDS(kTransferThreads, 2)
    run_transfers(const SYMM_GRID_CONSTANT GroupParams group,
                  const SYMM_GRID_CONSTANT TransferParams call,
                  const SYMM_GRID_CONSTANT WaitParams wait) {
  const bool alive = threadIdx.x != 0 || load_relaxed(&local_state(group).dead) == 0;
  if (!block_all(alive)) return;
  if (call.collective && blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).entered, collective_number(group));
  }
  if (blockIdx.x < static_cast<unsigned>(call.group_count * kBlocksPerLane)) {
    if (!serve_lane(group, call, wait)) return;
  } else {
    copy_own(call);
  }
  if (!call.collective) return;
  __syncthreads();
  if (threadIdx.x == 0 && is_last_block(&local_state(group).channel_ticket)) {
    end_collective(group, call.ends_call);
  }
}

}  // namespace

const void* transfer_kernel() { return reinterpret_cast<const void*>(&run_transfers); }

}  // namespace symm
