#include "backend/engine/group/call_record.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/cpu/host_collectives.hpp"
#include "kernels/plan/placement.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

std::uint64_t hash_counts(std::span<const Part> parts) {
  std::uint64_t hash = 14695981039346656037u;
  for (const Part& part : parts) hash = (hash ^ part.count) * 1099511628211u;
  return hash;
}

std::span<const Part> common_list(const CollectiveArgs& args) {
  if (args.kind == CollectiveKind::kAllGather) return args.output_parts;
  if (args.kind == CollectiveKind::kReduceScatter) return args.input_parts;
  return {};
}

namespace {

// What two calls that do not belong together differ in, as far as describe_call() does not say it:
// " with chunk_bytes 65536 and 16384", or nothing.
std::string difference(const CallRecord& a, const CallRecord& b) {
  const auto with = [](const char* what, std::uint32_t mine, std::uint32_t theirs) {
    if (mine == theirs) return std::string();
    return std::string(" with ") + what + " " + std::to_string(mine) + " and " +
           std::to_string(theirs);
  };
  std::string text;
  if (a.layout != b.layout) {
    const bool moves = a.kind != static_cast<std::uint8_t>(CollectiveKind::kBarrier);
    text += moves ? " with another memory layout, or other rows to norm"
                  : " before pieces of other sizes";
  }
  if (a.counts_hash != b.counts_hash) text += " with other counts of the ranks";
  if (a.kind != b.kind || a.algorithm != b.algorithm) return text;
  return text + with("chunk_bytes", a.chunk_bytes, b.chunk_bytes) +
         with("channels", a.channels, b.channels);
}

bool is_readable(const CallRecord& record) {
  return record.kind < kCollectiveKindCount && record.dtype < kDtypeCount &&
         record.op < kReduceOpCount && record.algorithm < kAlgorithmCount;
}

// Every rank can write to the memory of the others. This one has not done so, and which of them
// has, nothing says.
Error written_over(const LocalGroup& group, const std::string& counter, int owner,
                   std::uint64_t sequence) {
  std::vector<int> others;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank != group.rank()) others.push_back(rank);
  }
  return Error(ErrorCode::kSecurity, group.prefix(), "the record of the call that ",
               group.rank_name(owner), " made at ", counter, " ", sequence,
               " was written over, which can have been done by ", group.names().list(others));
}

}  // namespace

InputArray joined_parts(std::span<const Part> parts, std::size_t element_bytes) {
  std::size_t total = 0;
  const auto* base = static_cast<const std::byte*>(parts[0].data);
  for (const Part& part : parts) {
    if (part.data != base + total) return {};
    total += part.count * element_bytes;
  }
  return {base, total};
}

InputArray input_array(const CollectiveArgs& args, int rank, Algorithm algorithm,
                       PlanTarget target) {
  const std::size_t size = dtype_bytes(args.dtype);
  const std::size_t bytes = args.count * size;
  switch (remote_access(args.kind, algorithm, target)) {
    case RemoteAccess::kNone:
    case RemoteAccess::kWritesOutput:
    case RemoteAccess::kNeedsInput:
    case RemoteAccess::kNeedsBoth:
      return {};
    case RemoteAccess::kReadsInputApart:
      if (args.input == args.output) return {};
      break;
    case RemoteAccess::kReadsInputInPlace:
      if (args.input != args.output) return {};
      break;
    case RemoteAccess::kReadsInput:
      break;
  }
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return {args.input, bytes};
    case CollectiveKind::kBroadcast:
      return rank == args.root ? InputArray{args.input, bytes} : InputArray{};
    case CollectiveKind::kScatter:
      if (rank != args.root) return {};
      break;
    case CollectiveKind::kReduceScatter:
      break;
    default:
      return {};
  }
  return joined_parts(args.input_parts, size);
}

std::size_t input_bytes(const CollectiveArgs& args, int peer, int world_size) {
  const std::size_t size = dtype_bytes(args.dtype);
  switch (args.kind) {
    case CollectiveKind::kAllGather:
      return args.output_parts[static_cast<std::size_t>(peer)].count * size;
    case CollectiveKind::kScatter:
      return static_cast<std::size_t>(world_size) * args.count * size;
    case CollectiveKind::kReduceScatter:
      return size *
             std::accumulate(args.input_parts.begin(), args.input_parts.end(), std::size_t{0},
                             [](std::size_t sum, const Part& part) { return sum + part.count; });
    case CollectiveKind::kAllToAll:
      return 0;  // each share is looked at apart
    default:
      return args.count * size;
  }
}

std::string describe_call(const CallRecord& record) {
  if (!is_readable(record)) return "an unreadable record";
  const auto kind = static_cast<CollectiveKind>(record.kind);
  std::string text(collective_name(kind));
  if (kind == CollectiveKind::kBarrier) return text;
  text += "(" + std::string(dtype_name(static_cast<Dtype>(record.dtype)));
  if (reduces(kind)) {
    text += ", " + std::string(reduce_op_name(static_cast<ReduceOp>(record.op)));
  }
  if (kind == CollectiveKind::kAllToAll) {
    text += ", own counts";
  } else {
    text += ", count " + std::to_string(record.count);
  }
  if (has_root(kind)) text += ", root " + std::to_string(record.root);
  text += ", " + std::string(algorithm_name(static_cast<Algorithm>(record.algorithm)));
  return text + ")";
}

std::uint64_t plan_bytes(const CollectiveArgs& args, int world_size) {
  if (args.kind == CollectiveKind::kAllToAll) return PlanRow::kNoLimit;
  std::size_t count = args.count;
  for (const Part& part : common_list(args)) count = std::max(count, part.count);
  return staged_bytes(args.kind, world_size, count * dtype_bytes(args.dtype));
}

std::uint64_t device_plan_bytes(const CollectiveArgs& args, int world_size, WireKind wire,
                                int ranks_of_gpu) {
  const std::uint64_t bytes = plan_bytes(args, world_size);
  if (wire != WireKind::kLine || bytes == PlanRow::kNoLimit) return bytes;
  const bool is_rare = reduces(args.kind) && !is_training_sum(args.op, args.dtype);
  const bool is_crowded = ranks_of_gpu * kMaxWireBlocks > kMostBulkBlocksOfGpu;
  return is_rare || is_crowded ? 2 * bytes : bytes;
}

CallRecord make_record(const CollectiveArgs& args, const Plan& plan, std::uint64_t sequence) {
  CallRecord record{};
  record.sequence = sequence;
  record.kind = static_cast<std::uint8_t>(args.kind);
  record.dtype = static_cast<std::uint8_t>(args.dtype);
  record.op = reduces(args.kind) ? static_cast<std::uint8_t>(args.op) : std::uint8_t{0};
  // Who norms rows, or others, has other blocks.
  record.layout = args.layout + static_cast<std::uint32_t>(args.norm.columns);
  record.root = args.root;
  record.count = args.count;
  if (const auto list = common_list(args); !list.empty()) {
    record.counts_hash = hash_counts(list);
    // A rank's own share differs from its peers' where the list is uneven.
    record.count = std::accumulate(list.begin(), list.end(), std::uint64_t{0},
                                   [](std::uint64_t sum, const Part& p) { return sum + p.count; });
  }
  record.algorithm = static_cast<std::uint8_t>(plan.algorithm);
  record.chunk_bytes = static_cast<std::uint32_t>(plan.chunk_bytes);
  record.channels = static_cast<std::uint32_t>(plan.channels);
  record.factor = args.factor;
  return record;
}

bool same_call(const CallRecord& a, const CallRecord& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root && a.count == b.count && a.counts_hash == b.counts_hash &&
         a.layout == b.layout && a.algorithm == b.algorithm && a.chunk_bytes == b.chunk_bytes &&
         a.channels == b.channels;
}

Error different_calls(const LocalGroup& group, const std::string& counter, int peer,
                      const CallRecord& mine, const CallRecord& theirs) {
  if (!is_readable(mine)) return written_over(group, counter, group.rank(), mine.sequence);
  if (!is_readable(theirs) || theirs.sequence != mine.sequence) {
    return written_over(group, counter, peer, mine.sequence);
  }
  return Error(ErrorCode::kMismatch,
               group.prefix() + "different calls at " + counter + " " +
                   std::to_string(mine.sequence) + ": " + group.rank_name(group.rank()) +
                   " called " + describe_call(mine) + ", " + group.rank_name(peer) + " called " +
                   describe_call(theirs) + difference(mine, theirs));
}

std::optional<CallRecord> read_device_call(const DeviceCalls& calls, std::uint64_t sequence) {
  constexpr std::size_t kWords = sizeof(CallRecord) / sizeof(std::uint64_t);
  const CallRecord& place = calls.calls[sequence % kDeviceCallRing];
  if (load_acquire(&place.sequence) != sequence) return std::nullopt;
  std::array<std::uint64_t, kWords> words{};
  const auto* const from = reinterpret_cast<const std::uint64_t*>(&place);
  for (std::size_t i = 0; i < kWords; ++i) words[i] = load_acquire(from + i);
  if (load_acquire(&place.sequence) != sequence) return std::nullopt;
  return std::bit_cast<CallRecord>(words);
}

std::string arrival_report(const LocalGroup& group,
                           const std::function<std::optional<std::string>(int peer)>& last_call) {
  std::string arrived;
  std::string missing;
  for (int peer = 0; peer < group.world_size(); ++peer) {
    if (peer == group.rank()) continue;
    const std::optional<std::string> last = last_call(peer);
    std::string& names = last ? missing : arrived;
    names += (names.empty() ? "" : ", ") + group.rank_name(peer);
    std::string known = last.value_or("");
    const std::string note = group.process_note(peer);
    if (!note.empty()) known += (known.empty() ? "" : "; ") + note;
    if (!known.empty()) names += " (" + known + ")";
  }
  return "arrived: " + (arrived.empty() ? "no other rank" : arrived) +
         "; not arrived: " + (missing.empty() ? "none" : missing);
}

}  // namespace symm
