// LL packets: small messages stored straight into the peers' LL buffers, each packet with its own
// flag.
//
// NOTE [LL packets]
// An LL packet is 16 bytes: two 8-byte words of 4 bytes of data and the call's epoch. A word is
// stored and loaded as one, so its data is valid once its flag is: no fence, no barrier, no second
// message. (The protocol is NCCL's LL, "low latency".) A unit of 16 bytes of data is two packets.
//
// Every LL call of a group has the next epoch, kept in device memory. A rank has two sets of LL
// buffers, with one buffer for each sender; a call uses the set of its epoch's parity. A sender
// writes into a peer's buffer only after that peer has ended the call two epochs before, which was
// the last to read that set: at the end of a call every rank stores its epoch into ll_done at all
// peers. This acknowledgement makes rooted collectives safe, in which a rank may neither send nor
// receive. It usually arrives long before it is needed, and so costs one load of local memory.
//
// NOTE [Stale packets]
// After 2^32 calls epochs repeat (0 is left out: it is the value of an unused buffer), and a word
// that was not written since then would look valid. So in two of every 2^30 calls each sender
// writes all of its LL buffers.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/wait.cuh"

namespace symm {

__device__ inline std::uint32_t next_ll_epoch(std::uint32_t epoch) {
  return epoch == ~0u ? 2 : epoch + 1;
}
// The last call before `epoch` that used the same set.
__device__ inline std::uint32_t ll_epoch_before(std::uint32_t epoch) {
  return epoch == 2 || epoch == 3 ? epoch - 4 : epoch - 2;
}
inline constexpr std::uint32_t kRefreshPeriod = 1u << 30;

// In shared memory.
struct LLState {
  double factor[kMaxDeviceRanks];
  bool last;
};

// One LL call, in one block.
class LLCall {
 public:
  __device__ LLCall(const GroupParams& group, const CollectiveParams& call, Waiter& waiter,
                    LLState& state)
      : group_(group),
        call_(call),
        waiter_(waiter),
        state_(state),
        epoch_(next_ll_epoch(load_data(&local_state(group).ll_epoch))) {}

  // False when the launch must end.
  __device__ bool begin() {
    const int peer = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (peer < world_size() && peer != rank()) {
      const auto* done = reinterpret_cast<const std::uint32_t*>(segment_of(group_, rank()) +
                                                                group_.layout.ll_done) +
                         peer;
      const std::uint32_t target = ll_epoch_before(epoch_);
      ok = waiter_.wait(peer, [=] { return counter_reached(done, target); });
    }
    return block_all(ok);
  }

  // Ends the call: all of this rank's reads of its LL buffers are over. By every block that
  // succeeded.
  __device__ void end() {
    LocalState& local = local_state(group_);
    __syncthreads();
    if (threadIdx.x == 0) {
      state_.last = is_last_block(&local.ll_ticket);
      if (state_.last) {
        store_data(&local.ll_epoch, epoch_);
        end_collective(group_, call_.ends_call);
      }
    }
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    if (state_.last && peer < world_size() && peer != rank()) {
      auto* done =
          reinterpret_cast<std::uint32_t*>(segment_of(group_, peer) + group_.layout.ll_done) +
          rank();
      // The fences order reads, which ended before the barriers: those of the storing thread
      // suffice.
      release_before_barrier();
      release_after_barrier();
      store_relaxed(done, epoch_);
    }
  }

  __device__ Waiter& waiter() const { return waiter_; }
  __device__ int rank() const { return group_.rank; }
  __device__ int world_size() const { return group_.world_size; }

  // Units are distributed over all threads of the grid.
  __device__ std::size_t first_unit() const {
    return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  }
  __device__ std::size_t unit_stride() const {
    return static_cast<std::size_t>(gridDim.x) * blockDim.x;
  }

  __device__ void send(int peer, std::size_t unit, const Unit& value) const {
    std::uint64_t* words = words_at(peer, rank(), unit);
    store_relaxed_pair(words, packed(value.words[0]), packed(value.words[1]));
    store_relaxed_pair(words + 2, packed(value.words[2]), packed(value.words[3]));
  }

  // Loads without waiting; true when the whole unit has arrived.
  __device__ bool try_receive(int peer, std::size_t unit, Unit* value) const {
    const std::uint64_t* words = words_at(rank(), peer, unit);
    std::uint64_t w[4];
    load_relaxed_pair(words, &w[0], &w[1]);
    load_relaxed_pair(words + 2, &w[2], &w[3]);
    bool here = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      here = here && static_cast<std::uint32_t>(w[i] >> 32) == epoch_;
      value->words[i] = static_cast<std::uint32_t>(w[i]);
    }
    return here;
  }

  __device__ bool receive(int peer, std::size_t unit, Unit* value) {
    return waiter_.wait(peer, [&] { return try_receive(peer, unit, value); });
  }

  // Combines the unit of every rank, this one's being `own`, in rank order.
  template <class Rules>
  __device__ SYMM_OUTLINED_METHOD bool reduce(std::size_t unit, const Unit& own,
                                              const typename Rules::Facts& facts, Unit* result) {
    if constexpr (!Rules::kIsShared) {
      return reduce_by<Rules>(unit, own, facts, result);
    } else {
      bool ok = false;
      Rules::visit(facts,
                   [&](auto rule) { ok = reduce_by<decltype(rule)>(unit, own, facts, result); });
      return ok;
    }
  }

  // PREMUL_SUM: each sender's factor is in the last unit of its LL buffer.
  __device__ void send_factor(int peer) const {
    if (blockIdx.x != 0 || threadIdx.x != 0 || !call_.premultiplies) return;
    const auto bits = __builtin_bit_cast(std::uint64_t, call_.factor);
    send(peer, header_unit(),
         Unit{{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32), 0, 0}});
  }
  // By the whole block.
  __device__ bool receive_factors() {
    if (!call_.premultiplies) return true;
    const int peer = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (peer == rank()) {
      state_.factor[peer] = call_.factor;
    } else if (peer < world_size()) {
      Unit unit;
      ok = receive(peer, header_unit(), &unit);
      const std::uint64_t bits = unit.words[0] | (static_cast<std::uint64_t>(unit.words[1]) << 32);
      if (ok) state_.factor[peer] = __builtin_bit_cast(double, bits);
    }
    return block_all(ok);
  }
  template <class Rules>
  __device__ typename Rules::Facts facts() const {
    return Rules::facts_of(state_.factor, call_, group_);
  }

  // See NOTE [Stale packets]. `used`: units of a buffer that this call writes.
  __device__ void refresh(std::size_t used) const {
    if (epoch_ % kRefreshPeriod >= 2) return;
    const std::size_t end = header_unit() + (call_.premultiplies ? 0 : 1);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      for (std::size_t unit = used + first_unit(); unit < end; unit += unit_stride()) {
        send(peer, unit, Unit{});
      }
    }
  }

 private:
  static constexpr int kBatch = 4;

  template <class Rule>
  __device__ __forceinline__ bool reduce_by(std::size_t unit, const Unit& own,
                                            const typename Rule::Facts& facts, Unit* result) {
    UnitSum<Rule> sum;
    for (int base = 0; base < world_size(); base += kBatch) {
      Unit units[kBatch];
      int late = base;
      const auto all_here = [&] {
        bool here = true;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (peer >= world_size()) continue;
          if (peer == rank()) {
            units[k] = own;
          } else if (!try_receive(peer, unit, &units[k])) {
            here = false;
            late = peer;
          }
        }
        return here;
      };
      if (!waiter_.wait(late, all_here)) return false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (base + k < world_size()) sum.add(units[k], facts, base + k);
      }
    }
    *result = sum.finish(facts);
    return true;
  }

  __device__ std::uint64_t packed(std::uint32_t data) const {
    return (static_cast<std::uint64_t>(epoch_) << 32) | data;
  }
  __device__ std::size_t header_unit() const { return group_.layout.ll_buffer_packets / 2 - 1; }

  // The words of `unit` from `sender` in the LL buffers of `owner`.
  __device__ std::uint64_t* words_at(int owner, int sender, std::size_t unit) const {
    const std::uint64_t buffer =
        static_cast<std::uint64_t>(epoch_ & 1) * static_cast<std::uint64_t>(world_size()) +
        static_cast<std::uint64_t>(sender);
    const std::uint64_t packet = buffer * group_.layout.ll_buffer_packets + 2 * unit;
    return reinterpret_cast<std::uint64_t*>(segment_of(group_, owner) + group_.layout.ll_buffers +
                                            packet * kLLPacketBytes);
  }

  const GroupParams& group_;
  const CollectiveParams& call_;
  Waiter& waiter_;
  LLState& state_;
  const std::uint32_t epoch_;
};

}  // namespace symm
