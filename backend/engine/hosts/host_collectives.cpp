#include "backend/engine/hosts/host_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backend/engine/communicator.hpp"
#include "backend/engine/group/validation.hpp"
#include "kernels/cpu/reduce_kernels.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

// A broadcast of fewer bytes goes over one rail.
constexpr std::size_t kSmallBroadcast = std::size_t{32} << 10;

// Element range `index` of `count` nearly equal ones of `total`.
struct Share {
  Share(std::size_t total, int index, int count)
      : begin(total * static_cast<std::size_t>(index) / static_cast<std::size_t>(count)),
        count(total * static_cast<std::size_t>(index + 1) / static_cast<std::size_t>(count) -
              begin) {}
  std::size_t begin;
  std::size_t count;
};

Part part_at(const void* base, std::size_t offset, std::size_t count) {
  if (count == 0) return {};
  return {static_cast<std::byte*>(const_cast<void*>(base)) + offset, count};
}

std::size_t total_of(const std::vector<Part>& parts) {
  std::size_t total = 0;
  for (const Part& part : parts) total += part.count;
  return total;
}

// AVG divides where the hosts' values are combined, and PREMUL_SUM has multiplied by then.
ReduceOp op_in_host(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }
ReduceOp op_over_hosts(ReduceOp op) { return op == ReduceOp::kPreMulSum ? ReduceOp::kSum : op; }

}  // namespace

// What a rank is about to do, as another host's rank must be.
struct HostCollectives::Note {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t sent = 0;  // all_to_all: bytes for the rank that reads this
  std::uint32_t kind = 0;
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint32_t root = 0;
  std::uint32_t layout = 0;
  std::uint32_t unused = 0;
};

HostCollectives::HostCollectives(const HostLayout& layout, int rank, RankNames names,
                                 Communicator& local, HostLink& link)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of[static_cast<std::size_t>(rank)]),
      local_(layout.local_of[static_cast<std::size_t>(rank)]),
      names_(std::move(names)),
      communicator_(local),
      link_(link) {}

void HostCollectives::validate(const CollectiveArgs& args) const {
  communicator_.local_group()->check_usable();
  validate_collective(args, rank_, layout_.world_size(), names_);
  const bool narrow =
      args.dtype == Dtype::kInt8 || args.dtype == Dtype::kUInt8 || args.dtype == Dtype::kInt16;
  if (reduces(args.kind) && args.op == ReduceOp::kAvg && narrow) {
    throw Error(ErrorCode::kUnsupported, collective_name(args.kind), ": ReduceOp AVG of dtype ",
                dtype_name(args.dtype), " over several hosts (", layout_.text(),
                ") would wrap inside a host; use a wider dtype");
  }
}

milliseconds HostCollectives::left() const {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_.remaining()));
}

void HostCollectives::run(const CollectiveArgs& args, milliseconds timeout) {
  validate(args);
  const std::lock_guard lock(mutex_);
  deadline_ = Deadline(timeout);
  ++sequence_;
  try {
    compare_notes(args);
    dispatch(args);
  } catch (const Error& error) {
    const std::string host = layout_.names[static_cast<std::size_t>(host_)];
    const Error named(error.code(), collective_name(args.kind), " over hosts (", layout_.text(),
                      "): ", names_.name(rank_), " on host ", host, ": ", leg_, ": ", error.what());
    communicator_.abort(named.what());
    link_.abort();
    throw named;
  } catch (...) {
    communicator_.abort("a collective over hosts was interrupted");
    link_.abort();
    throw;
  }
}

void HostCollectives::dispatch(const CollectiveArgs& args) {
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(args);
    case CollectiveKind::kReduce:
      return reduce(args);
    case CollectiveKind::kBroadcast:
      return broadcast(args);
    case CollectiveKind::kAllGather:
      return all_gather(args);
    case CollectiveKind::kGather:
      return gather(args);
    case CollectiveKind::kScatter:
      return scatter(args);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(args);
    case CollectiveKind::kAllToAll:
      return all_to_all(args);
    case CollectiveKind::kBarrier: {
      CollectiveArgs local;
      return run_local(local);
    }
  }
}

void HostCollectives::run_local(const CollectiveArgs& args) {
  leg_ = "the leg inside the host";
  communicator_.run(args, left());
}

void HostCollectives::exchange(const Parts& to, const Parts& from) {
  leg_ = "the leg between hosts";
  link_.exchange(to, from, left());
}

void HostCollectives::exchange_all(Parts& to, Parts& from) {
  Parts input;
  Parts output;
  for (const int rank : here()) {
    const auto r = static_cast<std::size_t>(rank);
    input.push_back(std::exchange(to[r], {}));
    output.push_back(std::exchange(from[r], {}));
  }
  CollectiveArgs local;
  local.kind = CollectiveKind::kAllToAll;
  local.input_parts = input;
  local.output_parts = output;
  run_local(local);
  exchange(to, from);
}

void HostCollectives::compare_notes(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  const bool lists = args.kind == CollectiveKind::kAllToAll;
  // Shares of lists may differ from rank to rank; each pair compares its own.
  const auto note_of = [&](std::size_t shares, std::size_t pair) {
    const bool rooted = has_root(args.kind);
    const bool folds = reduces(args.kind);
    return Note{.sequence = sequence_,
                .count = shares,
                .sent = pair,
                .kind = static_cast<std::uint32_t>(args.kind),
                .dtype = static_cast<std::uint32_t>(args.dtype),
                .op = folds ? static_cast<std::uint32_t>(args.op) : 0,
                .root = rooted ? static_cast<std::uint32_t>(args.root) : 0,
                .layout = args.layout};
  };
  const auto expected_from = [&](std::size_t rank) {
    if (lists) return note_of(0, args.output_parts[rank].count * bytes);
    const bool gathers = args.kind == CollectiveKind::kAllGather;
    const std::size_t pair = gathers ? args.output_parts[rank].count * bytes : 0;
    const bool uneven = gathers || args.kind == CollectiveKind::kReduceScatter;
    return note_of(
        uneven ? total_of(gathers ? Parts(args.output_parts.begin(), args.output_parts.end())
                                  : Parts(args.input_parts.begin(), args.input_parts.end()))
               : args.count,
        pair);
  };
  const auto own_to = [&](std::size_t rank) {
    Note note = expected_from(rank);
    if (lists) note.sent = args.input_parts[rank].count * bytes;
    if (args.kind == CollectiveKind::kAllGather) note.sent = args.count * bytes;
    return note;
  };
  std::vector<Note> sent(layout_.host_of.size());
  std::vector<Note> got(layout_.host_of.size());
  Parts to = no_parts();
  Parts from = no_parts();
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    if (is_here(rank)) continue;
    const auto r = static_cast<std::size_t>(rank);
    sent[r] = own_to(r);
    to[r] = {&sent[r], sizeof(Note)};
    from[r] = {&got[r], sizeof(Note)};
  }
  exchange(to, from);
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    if (is_here(rank)) continue;
    const auto r = static_cast<std::size_t>(rank);
    const Note expected = expected_from(r);
    if (std::memcmp(&expected, &got[r], sizeof(Note)) == 0) continue;
    const auto kind = static_cast<std::size_t>(got[r].kind);
    throw Error(ErrorCode::kMismatch, "ranks made different calls: ", names_.name(rank),
                " on host ", layout_.names[static_cast<std::size_t>(layout_.host_of[r])], " made ",
                kind < kCollectiveKindNames.size() ? kCollectiveKindNames[kind] : "another call",
                " of ", got[r].count, " elements (dtype ", got[r].dtype, ", operator ", got[r].op,
                ", root ", got[r].root, ", ", got[r].sent, " bytes for this rank), this one ",
                collective_name(args.kind), " of ", expected.count, " (dtype ", expected.dtype,
                ", operator ", expected.op, ", root ", expected.root, ", ", expected.sent,
                " bytes from it)");
  }
}

void HostCollectives::fold(const CollectiveArgs& args, const std::vector<const void*>& of_hosts,
                           void* result, std::size_t count) const {
  if (count == 0) return;
  const ReduceKernels& kernels = reduce_kernels(args.dtype, op_over_hosts(args.op), selected_isa());
  kernels.reduce(result, of_hosts.data(), static_cast<int>(of_hosts.size()), nullptr,
                 layout_.world_size(), count);
}

HostCollectives::Bytes HostCollectives::rail_fold(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  Parts shares(here().size());
  for (int i = 0; i < layout_.rails; ++i) {
    const Share share(args.count, i, layout_.rails);
    shares[static_cast<std::size_t>(i)] = part_at(args.input, share.begin * bytes, share.count);
  }
  const std::size_t own = shares[static_cast<std::size_t>(local_)].count;
  Bytes partial(std::max<std::size_t>(1, own * bytes));
  CollectiveArgs local = args;
  local.kind = CollectiveKind::kReduceScatter;
  local.op = op_in_host(args.op);
  local.input = nullptr;
  local.input_parts = shares;
  local.output = partial.data();
  local.count = own;
  run_local(local);

  const int hosts = layout_.host_count();
  const Share mine(own, host_, hosts);
  Bytes pieces(std::max<std::size_t>(1, mine.count * bytes * static_cast<std::size_t>(hosts)));
  std::vector<const void*> of_hosts;
  Parts to = no_parts();
  Parts from = no_parts();
  for (int host = 0; host < hosts; ++host) {
    std::byte* const place = pieces.data() + static_cast<std::size_t>(host) * mine.count * bytes;
    if (host == host_ || !on_rail()) {
      of_hosts.push_back(partial.data() + mine.begin * bytes);
      continue;
    }
    of_hosts.push_back(place);
    const auto peer = static_cast<std::size_t>(layout_.stand_in(host, local_));
    const Share theirs(own, host, hosts);
    to[peer] = part_at(partial.data(), theirs.begin * bytes, theirs.count * bytes);
    from[peer] = part_at(place, 0, mine.count * bytes);
  }
  exchange(to, from);
  Bytes folded(mine.count * bytes);
  fold(args, of_hosts, folded.data(), mine.count);
  return folded;
}

void HostCollectives::all_reduce(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  const Bytes folded = rail_fold(args);
  const std::size_t own = on_rail() ? Share(args.count, local_, layout_.rails).count : 0;
  Bytes share(std::max<std::size_t>(1, own * bytes));
  Parts to = no_parts();
  Parts from = no_parts();
  for (int host = 0; on_rail() && host < layout_.host_count(); ++host) {
    const Share piece(own, host, layout_.host_count());
    std::byte* const place = share.data() + piece.begin * bytes;
    if (host == host_) {
      std::copy(folded.begin(), folded.end(), place);
      continue;
    }
    const auto peer = static_cast<std::size_t>(layout_.stand_in(host, local_));
    to[peer] = part_at(folded.data(), 0, folded.size());
    from[peer] = part_at(place, 0, piece.count * bytes);
  }
  exchange(to, from);
  Parts shares(here().size());
  for (int i = 0; i < layout_.rails; ++i) {
    const Share of(args.count, i, layout_.rails);
    shares[static_cast<std::size_t>(i)] = part_at(args.output, of.begin * bytes, of.count);
  }
  CollectiveArgs local = args;
  local.kind = CollectiveKind::kAllGather;
  local.input = share.data();
  local.count = own;
  local.output_parts = shares;
  run_local(local);
}

void HostCollectives::reduce(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  Bytes folded = rail_fold(args);
  Parts to = no_parts();
  Parts from = no_parts();
  to[static_cast<std::size_t>(args.root)] = part_at(folded.data(), 0, folded.size());
  for (int rank = 0; rank_ == args.root && rank < layout_.world_size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (layout_.local_of[r] >= layout_.rails) continue;
    const Share share(args.count, layout_.local_of[r], layout_.rails);
    const Share piece(share.count, layout_.host_of[r], layout_.host_count());
    from[r] = part_at(args.output, (share.begin + piece.begin) * bytes, piece.count * bytes);
  }
  exchange_all(to, from);
}

void HostCollectives::reduce_scatter(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  const std::size_t places = here().size();
  // What each rank of this host reduces: the shares of all ranks that it stands for.
  Parts shares(places);
  std::vector<std::size_t> offsets(layout_.host_of.size());
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    Part& share = shares[static_cast<std::size_t>(layout_.local_of[r]) % places];
    offsets[r] = share.count;
    share.count += args.input_parts[r].count;
  }
  Bytes packed(std::max<std::size_t>(1, total_of(shares) * bytes));
  std::byte* next = packed.data();
  for (Part& share : shares) {
    share.data = next;
    next += share.count * bytes;
  }
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    if (args.input_parts[r].count == 0) continue;
    const Part& share = shares[static_cast<std::size_t>(layout_.local_of[r]) % places];
    std::memcpy(static_cast<std::byte*>(share.data) + offsets[r] * bytes, args.input_parts[r].data,
                args.input_parts[r].count * bytes);
  }
  const std::size_t own = shares[static_cast<std::size_t>(local_)].count;
  Bytes partial(std::max<std::size_t>(1, own * bytes));
  CollectiveArgs local = args;
  local.op = op_in_host(args.op);
  local.input_parts = shares;
  local.output = partial.data();
  local.count = own;
  run_local(local);

  Parts to = no_parts();
  Parts from = no_parts();
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (is_here(rank) || layout_.stand_in(host_, layout_.local_of[r]) != rank_) continue;
    to[r] = part_at(partial.data(), offsets[r] * bytes, args.input_parts[r].count * bytes);
  }
  Bytes pieces(std::max<std::size_t>(1, args.count * bytes * layout_.members.size()));
  std::vector<const void*> of_hosts;
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (host == host_) {
      of_hosts.push_back(partial.data() + offsets[static_cast<std::size_t>(rank_)] * bytes);
      continue;
    }
    std::byte* const place = pieces.data() + static_cast<std::size_t>(host) * args.count * bytes;
    of_hosts.push_back(place);
    const auto peer = static_cast<std::size_t>(layout_.stand_in(host, local_));
    from[peer] = part_at(place, 0, args.count * bytes);
  }
  exchange(to, from);
  fold(args, of_hosts, args.output, args.count);
}

void HostCollectives::all_gather(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  const std::size_t places = here().size();
  // What each rank of this host brings: its own input and those of the ranks it stands for.
  Parts shares(places);
  std::vector<std::size_t> offsets(layout_.host_of.size());
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    Part& share = shares[static_cast<std::size_t>(layout_.local_of[r]) % places];
    offsets[r] = share.count;
    share.count += args.output_parts[r].count;
  }
  const std::size_t own = shares[static_cast<std::size_t>(local_)].count;
  Bytes brought(std::max<std::size_t>(1, own * bytes));
  Parts to = no_parts();
  Parts from = no_parts();
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (is_here(rank) || layout_.stand_in(host_, layout_.local_of[r]) != rank_) continue;
    from[r] = part_at(brought.data(), offsets[r] * bytes, args.output_parts[r].count * bytes);
  }
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (host == host_) continue;
    to[static_cast<std::size_t>(layout_.stand_in(host, local_))] =
        part_at(args.input, 0, args.count * bytes);
  }
  exchange(to, from);
  if (args.count > 0) {
    std::memcpy(brought.data() + offsets[static_cast<std::size_t>(rank_)] * bytes, args.input,
                args.count * bytes);
  }
  Bytes gathered(std::max<std::size_t>(1, total_of(shares) * bytes));
  std::byte* next = gathered.data();
  for (Part& share : shares) {
    share.data = next;
    next += share.count * bytes;
  }
  CollectiveArgs local = args;
  local.input = brought.data();
  local.count = own;
  local.output_parts = shares;
  run_local(local);
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    const Part& place = args.output_parts[r];
    if (place.count == 0) continue;
    const Part& share = shares[static_cast<std::size_t>(layout_.local_of[r]) % places];
    std::memcpy(place.data, static_cast<const std::byte*>(share.data) + offsets[r] * bytes,
                place.count * bytes);
  }
}

void HostCollectives::broadcast(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  const auto root = static_cast<std::size_t>(args.root);
  const int rails = args.count * bytes < kSmallBroadcast ? 1 : layout_.rails;
  const bool from_here = is_here(args.root);
  if (from_here) {
    CollectiveArgs local = args;
    local.root = layout_.local_of[root];
    run_local(local);
  }
  Parts to = no_parts();
  Parts from = no_parts();
  Parts shares(here().size());
  for (int i = 0; i < rails; ++i) {
    const Share share(args.count, i, rails);
    shares[static_cast<std::size_t>(i)] = part_at(args.output, share.begin * bytes, share.count);
  }
  const Part own{shares[static_cast<std::size_t>(local_)].data,
                 shares[static_cast<std::size_t>(local_)].count * bytes};
  if (local_ < rails && from_here) {
    for (int host = 0; host < layout_.host_count(); ++host) {
      if (host != host_) to[static_cast<std::size_t>(layout_.stand_in(host, local_))] = own;
    }
  } else if (local_ < rails) {
    from[static_cast<std::size_t>(layout_.stand_in(layout_.host_of[root], local_))] = own;
  }
  exchange(to, from);
  if (from_here) return;
  CollectiveArgs local = args;
  local.kind = CollectiveKind::kAllGather;
  local.root = 0;
  local.input = own.data;
  local.count = own.count / bytes;
  local.output = nullptr;
  local.output_parts = shares;
  run_local(local);
}

void HostCollectives::gather(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  Parts to = no_parts();
  Parts from = no_parts();
  to[static_cast<std::size_t>(args.root)] = part_at(args.input, 0, args.count * bytes);
  for (std::size_t r = 0; rank_ == args.root && r < from.size(); ++r) {
    from[r] = part_at(args.output_parts[r].data, 0, args.output_parts[r].count * bytes);
  }
  exchange_all(to, from);
}

void HostCollectives::scatter(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  Parts to = no_parts();
  Parts from = no_parts();
  from[static_cast<std::size_t>(args.root)] = part_at(args.output, 0, args.count * bytes);
  for (std::size_t r = 0; rank_ == args.root && r < to.size(); ++r) {
    to[r] = part_at(args.input_parts[r].data, 0, args.input_parts[r].count * bytes);
  }
  exchange_all(to, from);
}

void HostCollectives::all_to_all(const CollectiveArgs& args) {
  const std::size_t bytes = dtype_bytes(args.dtype);
  Parts to = no_parts();
  Parts from = no_parts();
  for (std::size_t r = 0; r < to.size(); ++r) {
    to[r] = part_at(args.input_parts[r].data, 0, args.input_parts[r].count * bytes);
    from[r] = part_at(args.output_parts[r].data, 0, args.output_parts[r].count * bytes);
  }
  exchange_all(to, from);
}

}  // namespace symm
