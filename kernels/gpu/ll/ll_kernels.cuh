// Collectives by LL packets, over LLCall: one hop unless stated otherwise. All blocks of the launch
// run each function, which returns false in a thread that gave up.
//
// Sizes are those of the part [begin, begin + limit) of each message; a sender's part fits its LL
// buffer.
#pragma once

#include "kernels/gpu/ll/packets.cuh"

namespace symm {

// A message that a rank reads or writes, divided into units.
struct LLMessage {
  std::byte* data;
  std::size_t bytes;

  __device__ std::size_t units() const { return (bytes + kUnitBytes - 1) / kUnitBytes; }
  __device__ std::size_t bytes_of(std::size_t unit) const {
    return min_size(kUnitBytes, bytes - unit * kUnitBytes);
  }
  __device__ Unit load(std::size_t unit) const {
    return load_unit(data + unit * kUnitBytes, bytes_of(unit));
  }
  __device__ void store(std::size_t unit, const Unit& value) const {
    store_unit(data + unit * kUnitBytes, value, bytes_of(unit));
  }
};

__device__ inline LLMessage ll_message(const CollectiveParams& call, const void* data,
                                       std::uint64_t count) {
  const std::uint64_t total = count * call.element_bytes;
  const std::uint64_t rest = total > call.begin ? total - call.begin : 0;
  return {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + call.begin,
          rest < call.limit ? rest : call.limit};
}
__device__ inline LLMessage ll_input(const CollectiveParams& call) {
  return ll_message(call, call.input, call.count);
}
__device__ inline LLMessage ll_output(const CollectiveParams& call) {
  return ll_message(call, call.output, call.count);
}
__device__ inline LLMessage ll_part(const CollectiveParams& call, int rank) {
  return ll_message(call, call.parts[rank].data, call.parts[rank].count);
}

__device__ inline void ll_send_all(const LLCall& x, int peer, const LLMessage& message) {
  for (std::size_t u = x.first_unit(); u < message.units(); u += x.unit_stride()) {
    x.send(peer, u, message.load(u));
  }
}
__device__ inline bool ll_receive_all(LLCall& x, int peer, const LLMessage& message) {
  for (std::size_t u = x.first_unit(); u < message.units(); u += x.unit_stride()) {
    Unit unit;
    if (!x.receive(peer, u, &unit)) return false;
    message.store(u, unit);
  }
  return true;
}
__device__ inline void ll_copy(const LLCall& x, const LLMessage& to, const LLMessage& from) {
  if (to.data == from.data) return;
  for (std::size_t u = x.first_unit(); u < to.units(); u += x.unit_stride()) {
    to.store(u, from.load(u));
  }
}

__device__ inline bool ll_all_gather(LLCall& x, const CollectiveParams& call) {
  const LLMessage own = ll_message(call, call.input, call.parts[x.rank()].count);
  std::size_t used = 0;
  for (int r = 0; r < x.world_size(); ++r) {
    const std::size_t units = ll_part(call, r).units();
    used = units > used ? units : used;
  }
  for (std::size_t u = x.first_unit(); u < own.units(); u += x.unit_stride()) {
    const Unit unit = own.load(u);
    for (int i = 1; i < x.world_size(); ++i) x.send(nth_peer(x.rank(), i, x.world_size()), u, unit);
  }
  x.refresh(used);
  ll_copy(x, ll_part(call, x.rank()), own);
  for (int i = 1; i < x.world_size(); ++i) {
    const int peer = nth_peer(x.rank(), i, x.world_size());
    if (!ll_receive_all(x, peer, ll_part(call, peer))) return false;
  }
  return true;
}

__device__ inline bool ll_broadcast(LLCall& x, const CollectiveParams& call) {
  const LLMessage output = ll_output(call);
  x.refresh(output.units());
  if (x.rank() != call.root) return ll_receive_all(x, call.root, output);
  const LLMessage input = ll_input(call);
  for (std::size_t u = x.first_unit(); u < input.units(); u += x.unit_stride()) {
    const Unit unit = input.load(u);
    for (int i = 1; i < x.world_size(); ++i) x.send(nth_peer(x.rank(), i, x.world_size()), u, unit);
    if (output.data != input.data) output.store(u, unit);
  }
  return true;
}

__device__ inline bool ll_gather(LLCall& x, const CollectiveParams& call) {
  const LLMessage input = ll_input(call);
  x.refresh(input.units());
  if (x.rank() != call.root) {
    ll_send_all(x, call.root, input);
    return true;
  }
  ll_copy(x, ll_part(call, x.rank()), input);
  for (int i = 1; i < x.world_size(); ++i) {
    const int peer = nth_peer(x.rank(), i, x.world_size());
    if (!ll_receive_all(x, peer, ll_part(call, peer))) return false;
  }
  return true;
}

__device__ inline bool ll_scatter(LLCall& x, const CollectiveParams& call) {
  const LLMessage output = ll_output(call);
  x.refresh(output.units());
  if (x.rank() != call.root) return ll_receive_all(x, call.root, output);
  for (int i = 1; i < x.world_size(); ++i) {
    const int peer = nth_peer(x.rank(), i, x.world_size());
    ll_send_all(x, peer, ll_part(call, peer));
  }
  ll_copy(x, output, ll_part(call, x.rank()));
  return true;
}

// One unit in each direction; by the first block alone.
__device__ inline bool ll_barrier(LLCall& x) {
  x.refresh(1);
  const int peer = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || peer >= x.world_size() || peer == x.rank()) return true;
  release_earlier_work();
  x.send(peer, 0, Unit{});
  Unit unit;
  const bool ok = x.receive(peer, 0, &unit);
  acquire_for_later_work();
  return ok;
}

// Combines each unit of all ranks, this rank's being that of `own`, into `output`.
template <class Rules>
__device__ inline bool ll_reduce_into(LLCall& x, const LLMessage& output, const LLMessage& own) {
  if (!x.receive_factors()) return false;
  for (std::size_t u = x.first_unit(); u < own.units(); u += x.unit_stride()) {
    Unit result;
    if (!x.reduce<Rules>(u, own.load(u), x.facts<Rules>(), &result)) return false;
    output.store(u, result);
  }
  return true;
}

template <class Rules>
__device__ inline bool ll_all_reduce(LLCall& x, const CollectiveParams& call) {
  const LLMessage input = ll_input(call);
  const LLMessage output = ll_output(call);
  for (std::size_t u = x.first_unit(); u < input.units(); u += x.unit_stride()) {
    const Unit unit = input.load(u);
    for (int i = 1; i < x.world_size(); ++i) x.send(nth_peer(x.rank(), i, x.world_size()), u, unit);
  }
  for (int peer = 0; peer < x.world_size(); ++peer) {
    if (peer != x.rank()) x.send_factor(peer);
  }
  x.refresh(input.units());
  return ll_reduce_into<Rules>(x, output, input);
}

// Two hops: units are sent to the rank that owns their share, which combines them and sends the
// results to all. An LL buffer holds the share's inputs first, its results after them. In place is
// safe: a result arrives only after this rank's input for it was read and sent.
template <class Rules>
__device__ inline bool ll_all_reduce_two_shot(LLCall& x, const CollectiveParams& call) {
  const LLMessage input = ll_input(call);
  const LLMessage output = ll_output(call);
  const std::size_t world = static_cast<std::size_t>(x.world_size());
  const std::size_t share = (input.units() + world - 1) / world;
  const auto begin_of = [&](int r) {
    return min_size(share * static_cast<std::size_t>(r), input.units());
  };
  for (int i = 1; i < x.world_size(); ++i) {
    const int owner = nth_peer(x.rank(), i, x.world_size());
    const std::size_t begin = begin_of(owner);
    const std::size_t count = begin_of(owner + 1) - begin;
    for (std::size_t u = x.first_unit(); u < count; u += x.unit_stride()) {
      x.send(owner, u, input.load(begin + u));
    }
    x.send_factor(owner);
  }
  x.refresh(2 * share);
  if (!x.receive_factors()) return false;
  const std::size_t mine = begin_of(x.rank());
  const std::size_t count = begin_of(x.rank() + 1) - mine;
  for (std::size_t u = x.first_unit(); u < count; u += x.unit_stride()) {
    Unit result;
    if (!x.reduce<Rules>(u, input.load(mine + u), x.facts<Rules>(), &result)) return false;
    output.store(mine + u, result);
    for (int i = 1; i < x.world_size(); ++i) {
      x.send(nth_peer(x.rank(), i, x.world_size()), share + u, result);
    }
  }
  for (int i = 1; i < x.world_size(); ++i) {
    const int owner = nth_peer(x.rank(), i, x.world_size());
    const std::size_t begin = begin_of(owner);
    const std::size_t theirs = begin_of(owner + 1) - begin;
    for (std::size_t u = x.first_unit(); u < theirs; u += x.unit_stride()) {
      Unit unit;
      if (!x.receive(owner, share + u, &unit)) return false;
      output.store(begin + u, unit);
    }
  }
  return true;
}

template <class Rules>
__device__ inline bool ll_reduce(LLCall& x, const CollectiveParams& call) {
  const LLMessage input = ll_input(call);
  x.refresh(input.units());
  if (x.rank() != call.root) {
    ll_send_all(x, call.root, input);
    x.send_factor(call.root);
    return true;
  }
  return ll_reduce_into<Rules>(x, ll_output(call), input);
}

template <class Rules>
__device__ inline bool ll_reduce_scatter(LLCall& x, const CollectiveParams& call) {
  std::size_t used = 0;
  for (int i = 1; i < x.world_size(); ++i) {
    const int peer = nth_peer(x.rank(), i, x.world_size());
    const LLMessage share = ll_part(call, peer);
    used = share.units() > used ? share.units() : used;
    ll_send_all(x, peer, share);
    x.send_factor(peer);
  }
  x.refresh(used);
  return ll_reduce_into<Rules>(x, ll_message(call, call.output, call.parts[x.rank()].count),
                               ll_part(call, x.rank()));
}

}  // namespace symm
