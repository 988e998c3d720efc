#include <algorithm>
#include <array>
#include <cstring>

#include "backend/engine/hosts/host_algorithms.hpp"

namespace symm {
namespace {

// all_reduce and reduce.
//
// NOTE [Chunks in flight]
// Chunk c is scattered in step c, folded in step c + 1 and gathered in step c + 2 (c + 1 where the
// folds need no second exchange), so three sets of buffers suffice.
class RailReduction {
 public:
  RailReduction(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs),
        args_(args),
        element_(dtype_bytes(args.dtype)),
        hosts_(legs.layout().host_count()) {
    const auto rails = static_cast<std::size_t>(legs.layout().rails);
    const auto others = static_cast<std::size_t>(hosts_ - 1);
    chunk_ = std::min(args.count, rails * (legs.limits().share_bytes / element_));
    chunks_ = (args.count + chunk_ - 1) / chunk_;
    const std::size_t share = chunk_ / rails + 1;
    whole_shares_ = hosts_ == 2 || others * share * element_ <= legs.limits().whole_shares;
    const std::size_t folded = whole_shares_ ? share : share / static_cast<std::size_t>(hosts_) + 1;
    for (Chunk& chunk : in_flight_) {
      chunk.partial = legs.take(share * element_);
      chunk.incoming = legs.take(others * folded * element_);
      if (!folds_into_output()) chunk.result = legs.take(share * element_);
    }
  }

  void run() {
    const std::size_t lag = whole_shares_ ? 1 : 2;
    for (std::size_t step = 0; step < chunks_ + lag; ++step) {
      if (step < chunks_) {
        scatter(step);
        exchange_partials(step);
      }
      if (step >= 1 && step - 1 < chunks_) fold(step - 1);
      if (step >= lag) gather(step - lag);
    }
  }

 private:
  struct Chunk {
    std::size_t begin = 0;
    std::size_t count = 0;
    std::byte* partial = nullptr;   // this rail's share, combined in this host
    std::byte* incoming = nullptr;  // what this host folds of it, of each other host
    std::byte* result = nullptr;    // the share, folded
    std::unique_ptr<HostTransfer> exchange;
  };

  // Where what is folded needs no other exchange, its place in the output will do.
  bool folds_into_output() const { return whole_shares_ && to_all(); }

  bool to_all() const { return args_.kind == CollectiveKind::kAllReduce; }
  int root_host() const { return legs_.host_of(args_.root); }
  Chunk& in_flight(std::size_t index) { return in_flight_[index % in_flight_.size()]; }

  Share own_share(const Chunk& chunk) const { return legs_.own_share(chunk.count); }

  // Which elements of this rail's share `host` folds.
  Share folded_by(int host, const Chunk& chunk) const {
    const std::size_t own = own_share(chunk).count;
    if (!whole_shares_) return {own, host, hosts_};
    return to_all() || host == root_host() ? Share(0, own) : Share(own, 0);
  }

  // The share of each place, in memory whose first byte is that of the tensor.
  std::vector<Part> shares_at(const void* base, const Chunk& chunk) const {
    return legs_.rail_parts(base, chunk.begin, chunk.count, element_);
  }

  HostMessage message(int host, std::byte* base, Share share) const {
    return {legs_.stand_in(host), {base + share.begin * element_, share.count * element_}};
  }

  void scatter(std::size_t index) {
    Chunk& chunk = in_flight(index);
    chunk.begin = index * chunk_;
    chunk.count = std::min(chunk_, args_.count - chunk.begin);
    if (folds_into_output()) {
      chunk.result = at_byte(args_.output, (chunk.begin + own_share(chunk).begin) * element_);
    }
    const std::vector<Part> shares = shares_at(args_.input, chunk);
    CollectiveArgs local = args_;
    local.kind = CollectiveKind::kReduceScatter;
    local.op = op_in_host(args_.op);
    local.root = 0;
    local.input = nullptr;
    local.input_parts = shares;
    local.output = chunk.partial;
    local.count = own_share(chunk).count;
    legs_.run_local(local);
  }

  // The `n`-th of the other hosts' values of what this host folds.
  std::byte* incoming(const Chunk& chunk, std::size_t n) const {
    return chunk.incoming + n * folded_by(legs_.host(), chunk).count * element_;
  }

  void exchange_partials(std::size_t index) {
    if (!legs_.on_rail()) return;
    Chunk& chunk = in_flight(index);
    const Share mine = folded_by(legs_.host(), chunk);
    Messages to;
    Messages from;
    for (int host = 0; host < hosts_; ++host) {
      if (host == legs_.host()) continue;
      to.push_back(message(host, chunk.partial, folded_by(host, chunk)));
      from.push_back(message(host, incoming(chunk, from.size()), {0, mine.count}));
    }
    chunk.exchange = legs_.exchange(std::move(to), std::move(from));
  }

  void fold(std::size_t index) {
    if (!legs_.on_rail()) return;
    Chunk& chunk = in_flight(index);
    legs_.finish(chunk.exchange);
    const Share mine = folded_by(legs_.host(), chunk);
    std::vector<const void*> of_hosts;
    for (int host = 0; host < hosts_; ++host) {
      const auto before = static_cast<std::size_t>(host < legs_.host() ? host : host - 1);
      of_hosts.push_back(host == legs_.host() ? chunk.partial + mine.begin * element_
                                              : incoming(chunk, before));
    }
    legs_.fold(args_, of_hosts, chunk.result + mine.begin * element_, mine.count);
    if (!whole_shares_) exchange_folds(chunk);
  }

  void exchange_folds(Chunk& chunk) {
    Messages to;
    Messages from;
    for (int host = 0; host < hosts_; ++host) {
      if (host == legs_.host()) continue;
      if (to_all() || host == root_host()) {
        to.push_back(message(host, chunk.result, folded_by(legs_.host(), chunk)));
      }
      if (to_all() || legs_.host() == root_host()) {
        from.push_back(message(host, chunk.result, folded_by(host, chunk)));
      }
    }
    chunk.exchange = legs_.start(std::move(to), std::move(from));
  }

  void gather(std::size_t index) {
    Chunk& chunk = in_flight(index);
    legs_.finish(chunk.exchange);
    if (!to_all() && !legs_.is_here(args_.root)) return;
    CollectiveArgs local = args_;
    local.root = 0;
    local.input = chunk.result;
    local.output = nullptr;
    if (to_all()) {
      const std::vector<Part> shares = shares_at(args_.output, chunk);
      local.kind = CollectiveKind::kAllGather;
      local.count = own_share(chunk).count;
      local.output_parts = shares;
      legs_.run_local(local);
      return;
    }
    // To the root alone.
    std::vector<Part> to(legs_.here().size());
    std::vector<Part> from(legs_.here().size());
    to[static_cast<std::size_t>(legs_.place_of(args_.root))] = {chunk.result,
                                                                own_share(chunk).count};
    if (legs_.rank() == args_.root) from = shares_at(args_.output, chunk);
    local.kind = CollectiveKind::kAllToAll;
    local.count = 0;
    local.input = nullptr;
    local.input_parts = to;
    local.output_parts = from;
    legs_.run_local(local);
  }

  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  const int hosts_;
  std::size_t chunk_ = 0;  // elements of a whole chunk
  std::size_t chunks_ = 0;
  bool whole_shares_ = false;  // each host that needs the result folds all of it
  std::array<Chunk, 3> in_flight_;
};

// Chunk c is scattered in step c and folded in step c + 1.
class RailReduceScatter {
 public:
  RailReduceScatter(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs), args_(args), element_(dtype_bytes(args.dtype)) {
    std::size_t longest = 0;
    for (const Part& part : args.input_parts) longest = std::max(longest, part.count);
    chunk_ = std::min(longest, legs.of_each_host(legs.limits().share_bytes) / element_);
    chunks_ = (longest + chunk_ - 1) / chunk_;
    const auto hosts = static_cast<std::size_t>(legs.layout().host_count());
    for (Chunk& chunk : in_flight_) {
      for (int host = 0; host < legs.layout().host_count(); ++host) {
        for (std::size_t first = 0; first < legs.members(host).size();
             first += legs.here().size()) {
          chunk.partials.push_back(legs.take(chunk_ * element_));
        }
      }
      chunk.incoming = legs.take((hosts - 1) * chunk_ * element_);
    }
  }

  void run() {
    for (std::size_t step = 0; step <= chunks_; ++step) {
      if (step < chunks_) {
        Messages to = scatter(step);
        exchange(step, std::move(to));
      }
      if (step >= 1) fold(step - 1);
    }
  }

 private:
  struct Chunk {
    std::vector<std::byte*> partials;  // by run of ranks, each as many as this host has
    const std::byte* own = nullptr;    // this rank's, combined in this host
    std::byte* incoming = nullptr;     // of the other hosts, for this rank
    std::unique_ptr<HostTransfer> exchange;
  };

  Chunk& in_flight(std::size_t index) { return in_flight_[index % in_flight_.size()]; }

  // What chunk `index` has of a share of `count` elements.
  std::size_t in_chunk(std::size_t index, std::size_t count) const {
    const std::size_t begin = std::min(count, index * chunk_);
    return std::min(chunk_, count - begin);
  }

  // One local leg for as many ranks of a host as this one has; returns what goes to other hosts.
  Messages scatter(std::size_t index) {
    Chunk& chunk = in_flight(index);
    Messages to;
    std::size_t run = 0;
    for (int host = 0; host < legs_.layout().host_count(); ++host) {
      const std::vector<int>& ranks = legs_.members(host);
      for (std::size_t first = 0; first < ranks.size(); first += legs_.here().size()) {
        std::byte* const partial = chunk.partials[run++];
        const std::size_t mine = scatter_for(index, ranks, first, partial);
        const std::size_t place = first + static_cast<std::size_t>(legs_.place());
        if (host == legs_.host()) {
          chunk.own = partial;
        } else if (place < ranks.size()) {
          to.push_back({ranks[place], {partial, mine * element_}});
        }
      }
    }
    return to;
  }

  std::size_t scatter_for(std::size_t index, const std::vector<int>& ranks, std::size_t first,
                          std::byte* partial) {
    std::vector<Part> shares(legs_.here().size());
    for (std::size_t i = 0; i < shares.size() && first + i < ranks.size(); ++i) {
      const Part& whole = args_.input_parts[static_cast<std::size_t>(ranks[first + i])];
      const std::size_t count = in_chunk(index, whole.count);
      if (count > 0) shares[i] = {at_byte(whole.data, index * chunk_ * element_), count};
    }
    CollectiveArgs local = args_;
    local.op = op_in_host(args_.op);
    local.input_parts = shares;
    local.output = partial;
    local.count = shares[static_cast<std::size_t>(legs_.place())].count;
    legs_.run_local(local);
    return local.count;
  }

  void exchange(std::size_t index, Messages to) {
    Chunk& chunk = in_flight(index);
    const std::size_t bytes = in_chunk(index, args_.count) * element_;
    Messages from;
    for (int host = 0; host < legs_.layout().host_count(); ++host) {
      if (host == legs_.host()) continue;
      from.push_back({legs_.stand_in(host), {chunk.incoming + from.size() * bytes, bytes}});
    }
    chunk.exchange = legs_.exchange(std::move(to), std::move(from));
  }

  void fold(std::size_t index) {
    Chunk& chunk = in_flight(index);
    legs_.finish(chunk.exchange);
    const std::size_t count = in_chunk(index, args_.count);
    std::vector<const void*> of_hosts;
    of_hosts.reserve(legs_.layout().members.size());
    std::size_t others = 0;
    for (int host = 0; host < legs_.layout().host_count(); ++host) {
      of_hosts.push_back(host == legs_.host() ? chunk.own
                                              : chunk.incoming + others++ * count * element_);
    }
    legs_.fold(args_, of_hosts, at_byte(args_.output, index * chunk_ * element_), count);
  }

  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::size_t element_;
  std::size_t chunk_ = 0;  // elements of a whole chunk of each rank's share
  std::size_t chunks_ = 0;
  std::array<Chunk, 2> in_flight_;
};

}  // namespace

void reduce_over_rails(HostLegs& legs, const CollectiveArgs& args) {
  RailReduction(legs, args).run();
}

void reduce_scatter_over_rails(HostLegs& legs, const CollectiveArgs& args) {
  RailReduceScatter(legs, args).run();
}

}  // namespace symm
