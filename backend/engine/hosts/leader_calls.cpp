#include <algorithm>
#include <numeric>

#include "backend/engine/hosts/host_algorithms.hpp"

namespace symm {
namespace {

std::size_t total_of(std::span<const Part> parts) {
  return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                         [](std::size_t sum, const Part& part) { return sum + part.count; });
}

void broadcast_local(HostLegs& legs, const CollectiveArgs& like, int place, void* data,
                     std::size_t count) {
  CollectiveArgs local = like;
  local.kind = CollectiveKind::kBroadcast;
  local.root = place;
  local.input = data;
  local.output = data;
  local.count = count;
  local.input_parts = {};
  local.output_parts = {};
  legs.run_local(local);
}

// What the ranks of `host` contribute to a gathering, or get of a scatter.
std::size_t elements_of_host(const HostLegs& legs, const CollectiveArgs& args, int host) {
  if (has_root(args.kind)) return args.count * legs.members(host).size();
  std::size_t count = 0;
  for (const int rank : legs.members(host)) {
    count += args.output_parts[static_cast<std::size_t>(rank)].count;
  }
  return count;
}

// The most elements that one leader tells another.
std::size_t most_elements(const HostLegs& legs, const CollectiveArgs& args) {
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      return args.count;
    case CollectiveKind::kReduceScatter:
      return total_of(args.input_parts);
    case CollectiveKind::kScatter:
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather: {
      std::size_t most = 0;
      for (int host = 0; host < legs.layout().host_count(); ++host) {
        most = std::max(most, elements_of_host(legs, args, host));
      }
      return most;
    }
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBarrier:
      break;
  }
  return 0;
}

// The data that leaders exchange; other ranks have no peers. In heads where it fits, else in
// messages of its size.
class LeaderExchange {
 public:
  LeaderExchange(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs), args_(args), element_(dtype_bytes(args.dtype)) {
    if (legs.is_on_cpu() && most_elements(legs, args) <= head_room(legs) / element_) {
      heads_.emplace(legs, legs.leaders());
      return;
    }
    // NOTE [Messages in the user's memory] in rail_movements.cpp.
    const bool in_place =
        args.kind == CollectiveKind::kBroadcast && legs.is_on_cpu() && legs.takes_any_memory();
    const auto memory = [&](std::size_t bytes) {
      if (in_place && bytes > 0) return std::span(static_cast<std::byte*>(args.output), bytes);
      return room(bytes);
    };
    for (const int peer : legs.leaders()) {
      to_.push_back({peer, memory(bytes_to(legs.host_of(peer)))});
      from_.push_back({peer, memory(bytes_from(legs.host_of(peer)))});
    }
  }

  std::size_t peers() const { return legs_.leaders().size(); }
  int host_of(std::size_t index) const { return legs_.host_of(legs_.leaders()[index]); }
  // Null where nothing goes to that peer, or comes from it.
  std::byte* to(std::size_t index) {
    if (bytes_to(host_of(index)) == 0) return nullptr;
    return heads_ ? heads_->room_to(index) : to_[index].bytes.data();
  }
  const std::byte* from(std::size_t index) const {
    if (bytes_from(host_of(index)) == 0) return nullptr;
    return heads_ ? heads_->room_from(index) : from_[index].bytes.data();
  }

  // What to() names has been filled.
  void start() {
    if (heads_) return heads_->start();
    exchange_ = legs_.exchange(to_, from_);
  }
  void finish() {
    if (heads_) return heads_->finish();
    legs_.finish(exchange_);
  }

 private:
  std::span<std::byte> room(std::size_t bytes) {
    return bytes == 0 ? std::span<std::byte>() : std::span(legs_.take(bytes), bytes);
  }
  std::size_t bytes_to(int host) const { return bytes_between(legs_.host(), host); }
  std::size_t bytes_from(int host) const { return bytes_between(host, legs_.host()); }

  std::size_t bytes_between(int from, int to) const {
    const bool from_root = has_root(args_.kind) && from == legs_.host_of(args_.root);
    const bool to_root = has_root(args_.kind) && to == legs_.host_of(args_.root);
    switch (args_.kind) {
      case CollectiveKind::kBroadcast:
        return from_root ? args_.count * element_ : 0;
      case CollectiveKind::kScatter:
        return from_root ? elements_of_host(legs_, args_, to) * element_ : 0;
      case CollectiveKind::kReduce:
        return to_root ? args_.count * element_ : 0;
      case CollectiveKind::kGather:
        return to_root ? elements_of_host(legs_, args_, from) * element_ : 0;
      case CollectiveKind::kAllGather:
        return elements_of_host(legs_, args_, from) * element_;
      case CollectiveKind::kBarrier:
        return heads_ ? 0 : 1;  // a message to wait for
      default:
        return most_elements(legs_, args_) * element_;
    }
  }

  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  std::optional<CallHeads> heads_;
  Messages to_;
  Messages from_;
  std::unique_ptr<HostTransfer> exchange_;
};

void reduction(HostLegs& legs, LeaderExchange& exchange, const CollectiveArgs& args) {
  const std::size_t element = dtype_bytes(args.dtype);
  const bool scatters = args.kind == CollectiveKind::kReduceScatter;
  const std::size_t count = scatters ? total_of(args.input_parts) : args.count;
  const void* input = args.input;
  if (scatters) {
    std::byte* next = legs.take(count * element);
    input = next;
    for (const Part& part : args.input_parts) {
      legs.copy(next, part.data, part.count * element);
      next += part.count * element;
    }
  }
  std::byte* const result = legs.take(count * element);
  CollectiveArgs local = args;
  local.kind = CollectiveKind::kReduce;
  local.op = op_in_host(args.op);
  local.root = 0;
  local.input = input;
  local.output = result;
  local.count = count;
  local.input_parts = {};
  legs.run_local(local);
  for (std::size_t i = 0; i < exchange.peers(); ++i) {
    if (std::byte* const room = exchange.to(i)) legs.copy(room, result, count * element);
  }
  exchange.start();
  exchange.finish();
  const bool one_root = args.kind == CollectiveKind::kReduce;
  if (legs.leads() && (!one_root || legs.is_here(args.root))) {
    std::vector<const void*> of_hosts(legs.layout().members.size(), result);
    for (std::size_t i = 0; i < exchange.peers(); ++i) {
      of_hosts[static_cast<std::size_t>(exchange.host_of(i))] = exchange.from(i);
    }
    legs.fold(args, of_hosts, result, count);
  }
  if (one_root) {
    if (legs.is_here(args.root) && legs.place_of(args.root) != 0) {
      broadcast_local(legs, args, 0, result, count);
    }
    if (legs.rank() == args.root) legs.copy(args.output, result, count * element);
    return;
  }
  broadcast_local(legs, args, 0, result, count);
  std::size_t skipped = 0;
  for (int rank = 0; scatters && rank < legs.rank(); ++rank) {
    skipped += args.input_parts[static_cast<std::size_t>(rank)].count;
  }
  legs.copy(args.output, result + skipped * element, args.count * element);
}

// `data` of the root to all ranks; every rank passes memory for it.
void broadcast(HostLegs& legs, LeaderExchange& exchange, const CollectiveArgs& args,
               std::byte* data, std::size_t count) {
  const std::size_t bytes = count * dtype_bytes(args.dtype);
  const int place = legs.place_of(args.root);
  const bool from_here = legs.is_here(args.root);
  if (from_here && place != 0) broadcast_local(legs, args, place, data, count);
  for (std::size_t i = 0; i < exchange.peers(); ++i) {
    if (std::byte* const room = exchange.to(i)) legs.copy(room, data, bytes);
  }
  exchange.start();
  if (from_here && place == 0) broadcast_local(legs, args, 0, data, count);
  exchange.finish();
  if (from_here) return;
  for (std::size_t i = 0; i < exchange.peers(); ++i) {
    if (const std::byte* const room = exchange.from(i)) legs.copy(data, room, bytes);
  }
  broadcast_local(legs, args, 0, data, count);
}

void scatter(HostLegs& legs, LeaderExchange& exchange, const CollectiveArgs& args) {
  const std::size_t share = args.count * dtype_bytes(args.dtype);
  const bool from_here = legs.is_here(args.root);
  const std::size_t ranks = from_here ? legs.layout().host_of.size() : legs.here().size();
  // In the root's host of all ranks, elsewhere of those of the host, by place.
  std::byte* const shares = legs.take(ranks * share);
  for (std::size_t r = 0; legs.rank() == args.root && r < ranks; ++r) {
    legs.copy(shares + r * share, args.input_parts[r].data, share);
  }
  if (from_here) broadcast_local(legs, args, legs.place_of(args.root), shares, ranks * args.count);
  for (std::size_t i = 0; i < exchange.peers(); ++i) {
    std::byte* room = exchange.to(i);
    if (room == nullptr) continue;
    for (const int rank : legs.members(exchange.host_of(i))) {
      legs.copy(room, shares + static_cast<std::size_t>(rank) * share, share);
      room += share;
    }
  }
  exchange.start();
  exchange.finish();
  for (std::size_t i = 0; i < exchange.peers(); ++i) {
    if (const std::byte* const room = exchange.from(i)) legs.copy(shares, room, ranks * share);
  }
  if (!from_here) broadcast_local(legs, args, 0, shares, ranks * args.count);
  const int own = from_here ? legs.rank() : legs.place();
  legs.copy(args.output, shares + static_cast<std::size_t>(own) * share, share);
}

// all_gather and gather: `counts[r]` elements of each rank r.
class Gathering {
 public:
  Gathering(HostLegs& legs, LeaderExchange& exchange, const CollectiveArgs& args)
      : legs_(legs), exchange_(exchange), args_(args), element_(dtype_bytes(args.dtype)) {
    const auto world = static_cast<std::size_t>(legs.layout().world_size());
    std::size_t total = 0;
    for (std::size_t r = 0; r < world; ++r) {
      places_.push_back({nullptr, gathers_to_all() ? args.output_parts[r].count : args.count});
      total += places_.back().count;
    }
    all_ = legs.take(total * element_);
    total_ = total;
    std::byte* next = all_;
    for (Part& place : places_) {
      place.data = next;
      next += place.count * element_;
    }
  }

  void run() {
    std::vector<Part> of_host;
    for (const int rank : legs_.here()) of_host.push_back(place(rank));
    CollectiveArgs local = args_;
    local.kind = CollectiveKind::kAllGather;
    local.root = 0;
    local.output_parts = of_host;
    legs_.run_local(local);
    for (std::size_t i = 0; i < exchange_.peers(); ++i) {
      if (std::byte* const room = exchange_.to(i)) pack(room);
    }
    exchange_.start();
    exchange_.finish();
    for (std::size_t i = 0; i < exchange_.peers(); ++i) {
      if (const std::byte* const room = exchange_.from(i)) unpack(room, exchange_.host_of(i));
    }
    const bool wanted_here = gathers_to_all() || (legs_.is_here(args_.root));
    const bool leader_has_it = !gathers_to_all() && legs_.place_of(args_.root) == 0;
    if (wanted_here && !leader_has_it) broadcast_local(legs_, args_, 0, all_, total_);
    if (!gathers_to_all() && legs_.rank() != args_.root) return;
    for (std::size_t r = 0; r < places_.size(); ++r) {
      legs_.copy(args_.output_parts[r].data, places_[r].data, places_[r].count * element_);
    }
  }

 private:
  bool gathers_to_all() const { return args_.kind == CollectiveKind::kAllGather; }
  const Part& place(int rank) const { return places_[static_cast<std::size_t>(rank)]; }

  void pack(std::byte* room) const {
    for (const int rank : legs_.here()) {
      legs_.copy(room, place(rank).data, place(rank).count * element_);
      room += place(rank).count * element_;
    }
  }

  void unpack(const std::byte* room, int host) {
    for (const int rank : legs_.members(host)) {
      legs_.copy(place(rank).data, room, place(rank).count * element_);
      room += place(rank).count * element_;
    }
  }

  HostLegs& legs_;
  LeaderExchange& exchange_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  std::vector<Part> places_;  // by rank
  std::byte* all_ = nullptr;
  std::size_t total_ = 0;
};

void barrier(HostLegs& legs, LeaderExchange& exchange) {
  legs.run_local({});
  exchange.start();
  exchange.finish();
  legs.run_local({});
}

}  // namespace

bool goes_by_leaders(const HostLegs& legs, const CollectiveArgs& args) {
  if (args.kind == CollectiveKind::kAllToAll) return false;
  const HostLimits& limits = legs.limits();
  std::size_t told = limits.leader_bytes;
  if (args.kind == CollectiveKind::kBroadcast) told = limits.leader_broadcast_bytes;
  if (moves_to_or_from_root(args.kind)) told = std::min(told, limits.leader_pair_bytes);
  const std::size_t most = std::max(head_room(legs), legs.of_each_host(told));
  return most_elements(legs, args) <= most / dtype_bytes(args.dtype);
}

void call_by_leaders(HostLegs& legs, const CollectiveArgs& args) {
  LeaderExchange exchange(legs, args);
  switch (args.kind) {
    case CollectiveKind::kBarrier:
      return barrier(legs, exchange);
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter:
      return reduction(legs, exchange, args);
    case CollectiveKind::kScatter:
      return scatter(legs, exchange, args);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      return Gathering(legs, exchange, args).run();
    case CollectiveKind::kBroadcast: {
      auto* const data = static_cast<std::byte*>(args.output);
      if (legs.rank() == args.root) {
        legs.copy(data, args.input, args.count * dtype_bytes(args.dtype));
      }
      return broadcast(legs, exchange, args, data, args.count);
    }
    case CollectiveKind::kAllToAll:
      return;  // never goes by leaders
  }
}

}  // namespace symm
