#include <algorithm>
#include <array>

#include "backend/engine/hosts/host_algorithms.hpp"

namespace symm {
namespace {

// NOTE [Messages in the user's memory]
// Where the link takes any memory. What is sent may lie there: a stream keeps the order of whatever
// uses it, also after a failure, and on the CPU nothing is under way any more when the call ends.
// What is received may only on the CPU: nobody can take back what waits on a stream.

// Chunk c goes to the other hosts in step c and is gathered in step c + 1.
class RailAllGather {
 public:
  RailAllGather(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs), args_(args), element_(dtype_bytes(args.dtype)) {
    std::size_t longest = 0;
    for (const Part& part : args.output_parts) longest = std::max(longest, part.count);
    chunk_ = std::min(longest, legs.of_each_host(legs.limits().share_bytes) / element_);
    chunks_ = (longest + chunk_ - 1) / chunk_;
    for (int host = 0; host < legs.layout().host_count(); ++host) {
      if (host == legs.host()) continue;
      const std::size_t ranks = legs.members(host).size();
      for (std::size_t first = 0; first < ranks; first += legs.here().size()) {
        runs_.push_back({host, first});
      }
    }
    for (Chunk& chunk : in_flight_) {
      if (!legs.takes_any_memory()) chunk.outgoing = legs.take(chunk_ * element_);
      for (std::size_t run = 0; run < runs_.size() && !receives_in_output(); ++run) {
        chunk.incoming.push_back(legs.take(chunk_ * element_));
      }
    }
  }

  void run() {
    for (std::size_t step = 0; step <= chunks_; ++step) {
      if (step < chunks_) {
        in_flight(step).exchange =
            legs_.exchange(sent(step), received(step), [this, step] { gather_own_host(step); });
      }
      if (step >= 1) gather_others(step - 1);
    }
  }

 private:
  // As many ranks of another host as this one has, from its place `first` on.
  struct Run {
    int host;
    std::size_t first;
  };
  struct Chunk {
    std::byte* outgoing = nullptr;
    std::vector<std::byte*> incoming;  // by run
    std::unique_ptr<HostTransfer> exchange;
  };

  // NOTE [Messages in the user's memory]
  bool receives_in_output() const { return legs_.is_on_cpu() && legs_.takes_any_memory(); }
  Chunk& in_flight(std::size_t index) { return in_flight_[index % in_flight_.size()]; }

  Part in_chunk(std::size_t index, int rank) const {
    const Part& whole = args_.output_parts[static_cast<std::size_t>(rank)];
    const std::size_t begin = std::min(whole.count, index * chunk_);
    const std::size_t count = std::min(chunk_, whole.count - begin);
    if (count == 0) return {};
    return {at_byte(whole.data, begin * element_), count};
  }

  // The rank of `run` whose share this one brings to its host; -1: none.
  int brought(const Run& run) const {
    const std::vector<int>& ranks = legs_.members(run.host);
    const std::size_t place = run.first + static_cast<std::size_t>(legs_.place());
    return place < ranks.size() ? ranks[place] : -1;
  }

  // Where the message of `run` arrives that this rank brings.
  std::byte* place_of(std::size_t index, std::size_t run) {
    if (!receives_in_output()) return in_flight(index).incoming[run];
    return static_cast<std::byte*>(in_chunk(index, brought(runs_[run])).data);
  }

  void gather(std::size_t index, const std::vector<int>& ranks, std::size_t first,
              const void* input, std::size_t count) {
    std::vector<Part> outputs(legs_.here().size());
    for (std::size_t i = 0; i < outputs.size() && first + i < ranks.size(); ++i) {
      outputs[i] = in_chunk(index, ranks[first + i]);
    }
    CollectiveArgs local = args_;
    local.input = input;
    local.count = count;
    local.output_parts = outputs;
    legs_.run_local(local);
  }

  void gather_own_host(std::size_t index) {
    gather(index, legs_.here(), 0, at_byte(args_.input, index * chunk_ * element_),
           in_chunk(index, legs_.rank()).count);
  }

  Messages sent(std::size_t index) {
    Chunk& chunk = in_flight(index);
    const std::size_t bytes = in_chunk(index, legs_.rank()).count * element_;
    std::byte* const input = at_byte(args_.input, index * chunk_ * element_);
    std::byte* const outgoing = legs_.takes_any_memory() ? input : chunk.outgoing;
    if (outgoing != input) legs_.copy(outgoing, input, bytes);
    Messages to;
    for (int host = 0; host < legs_.layout().host_count(); ++host) {
      if (host != legs_.host()) to.push_back({legs_.stand_in(host), {outgoing, bytes}});
    }
    return to;
  }

  Messages received(std::size_t index) {
    Messages from;
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const int rank = brought(runs_[run]);
      if (rank < 0) continue;
      from.push_back({rank, {place_of(index, run), in_chunk(index, rank).count * element_}});
    }
    return from;
  }

  void gather_others(std::size_t index) {
    Chunk& chunk = in_flight(index);
    legs_.finish(chunk.exchange);
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const int rank = brought(runs_[run]);
      gather(index, legs_.members(runs_[run].host), runs_[run].first,
             rank < 0 ? nullptr : place_of(index, run), rank < 0 ? 0 : in_chunk(index, rank).count);
    }
  }

  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  std::size_t chunk_ = 0;  // elements of a whole chunk of each rank's share
  std::size_t chunks_ = 0;
  std::vector<Run> runs_;
  std::array<Chunk, 2> in_flight_;
};

// The root's host sends chunk c in step c, while the others still gather the one before; they have
// always asked for the next two.
class RailBroadcast {
 public:
  RailBroadcast(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs),
        args_(args),
        element_(dtype_bytes(args.dtype)),
        from_here_(legs.is_here(args.root)) {
    const auto rails = static_cast<std::size_t>(legs.layout().rails);
    chunk_ = std::min(args.count, rails * (legs.limits().share_bytes / element_));
    chunks_ = (args.count + chunk_ - 1) / chunk_;
    if (in_output()) return;
    for (Chunk& chunk : in_flight_) chunk.share = legs.take((chunk_ / rails + 1) * element_);
  }

  void run() {
    if (from_here_) {
      for (std::size_t index = 0; index < chunks_; ++index) {
        broadcast_here(index);
        send(index);
      }
      for (Chunk& chunk : in_flight_) legs_.finish(chunk.exchange);
      return;
    }
    for (std::size_t index = 0; index < std::min(chunks_, in_flight_.size()); ++index) {
      receive(index);
    }
    for (std::size_t index = 0; index < chunks_; ++index) {
      legs_.finish(in_flight(index).exchange);
      gather(index);
      if (index + in_flight_.size() < chunks_) receive(index + in_flight_.size());
    }
  }

 private:
  struct Chunk {
    std::byte* share = nullptr;  // this rail's
    std::unique_ptr<HostTransfer> exchange;
  };

  // NOTE [Messages in the user's memory]
  bool in_output() const { return legs_.takes_any_memory() && (from_here_ || legs_.is_on_cpu()); }
  Chunk& in_flight(std::size_t index) { return in_flight_[index % in_flight_.size()]; }
  std::size_t begin_of(std::size_t index) const { return index * chunk_; }
  std::size_t count_of(std::size_t index) const {
    return std::min(chunk_, args_.count - begin_of(index));
  }
  Share own_share(std::size_t index) const { return legs_.own_share(count_of(index)); }

  std::byte* place_of(const Share& share, std::size_t index) const {
    return at_byte(args_.output, (begin_of(index) + share.begin) * element_);
  }
  std::byte* share_of(std::size_t index) {
    return in_output() ? place_of(own_share(index), index) : in_flight(index).share;
  }

  void broadcast_here(std::size_t index) {
    const std::size_t offset = begin_of(index) * element_;
    CollectiveArgs local = args_;
    local.root = legs_.place_of(args_.root);
    local.input = at_byte(args_.input, offset);
    local.output = at_byte(args_.output, offset);
    local.count = count_of(index);
    legs_.run_local(local);
  }

  void send(std::size_t index) {
    if (!legs_.on_rail()) return;
    Chunk& chunk = in_flight(index);
    legs_.finish(chunk.exchange);
    const Share own = own_share(index);
    std::byte* const share = share_of(index);
    if (!in_output()) legs_.copy(share, place_of(own, index), own.count * element_);
    Messages to;
    for (int host = 0; host < legs_.layout().host_count(); ++host) {
      if (host == legs_.host()) continue;
      to.push_back({legs_.stand_in(host), {share, own.count * element_}});
    }
    chunk.exchange = legs_.exchange(std::move(to), {});
  }

  void receive(std::size_t index) {
    if (!legs_.on_rail()) return;
    Chunk& chunk = in_flight(index);
    const int from = legs_.stand_in(legs_.host_of(args_.root));
    chunk.exchange =
        legs_.start({}, {{from, {share_of(index), own_share(index).count * element_}}});
  }

  void gather(std::size_t index) {
    const std::vector<Part> outputs =
        legs_.rail_parts(args_.output, begin_of(index), count_of(index), element_);
    CollectiveArgs local = args_;
    local.kind = CollectiveKind::kAllGather;
    local.root = 0;
    local.input = share_of(index);
    local.output = nullptr;
    local.count = own_share(index).count;
    local.output_parts = outputs;
    legs_.run_local(local);
  }

  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  const bool from_here_;
  std::size_t chunk_ = 0;  // elements of a whole chunk
  std::size_t chunks_ = 0;
  std::array<Chunk, 2> in_flight_;
};

}  // namespace

void all_gather_over_rails(HostLegs& legs, const CollectiveArgs& args) {
  RailAllGather(legs, args).run();
}

void broadcast_over_rails(HostLegs& legs, const CollectiveArgs& args) {
  RailBroadcast(legs, args).run();
}

}  // namespace symm
