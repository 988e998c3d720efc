// The kernels of a row exchange (row_exchange.hpp), one behind the other on a stream. Nothing of it
// is known to the host, so that a graph replays it with other splits.
//
// plan_rows, one block: an entry barrier, after which the splits and inputs of all ranks are there;
// reads the splits of all ranks, and works out where everything lies. Every rank comes to the same
// verdict: where a split is wrong, no output is written anywhere.
// move_rows: each warp fetches a part of this rank's output from the peers' inputs; the last block
// makes the exit barrier, after which nobody reads this rank's memory. Then a wrong split ends the
// signals of the group, on every rank, as a wait does that gives up.
//
// A rank reads 8 * W * W * ne bytes of splits, and each row that it gets once, over the links.
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/signal.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/row_params.hpp"

namespace symm {

namespace {

// Parts of an output end at multiples of this, for accesses of whole lines.
constexpr std::uint64_t kShareUnit = 512;

// The parts of the scratch memory.
struct RowPlan {
  __device__ explicit RowPlan(const RowParams& rows)
      : slots(rows.shape.slots()),
        counts(rows.scratch),
        begins(counts + rows.shape.world_size * slots),
        sums(begins + rows.shape.world_size * slots),
        places(sums + rows.shape.world_size * slots),
        verdict(places + slots),
        ticket(reinterpret_cast<std::uint32_t*>(verdict + 1)) {}

  int slots;
  std::int64_t* counts;
  std::int64_t* begins;
  std::int64_t* sums;
  std::int64_t* places;  // where the slots of this rank's output begin
  std::int64_t* verdict;
  std::uint32_t* ticket;
};

// Copies what all ranks send to this GPU. By the whole block; false where a split cannot be.
__device__ bool read_splits(const RowParams& rows, const RowPlan& plan) {
  const RowExchangeShape& shape = rows.shape;
  bool ok = true;
  for (int i = static_cast<int>(threadIdx.x); i < shape.world_size * plan.slots;
       i += static_cast<int>(blockDim.x)) {
    const std::int64_t* const theirs = rows.splits[i / plan.slots] + i % plan.slots;
    const std::int64_t count = load_data(theirs);
    plan.counts[i] = count;
    ok = ok && shape.has_count(count);
    if (!shape.is_combine()) continue;
    const std::int64_t begin = load_data(theirs + plan.slots);
    plan.begins[i] = begin;
    ok = ok && shape.is_in_input(count, begin);
  }
  return block_all(ok);
}

// Calls store(line, slot, begin) for the slots of `lines` lines of `majors` parts each, `minor`
// slots a part, whose rows are count(line, slot) and which take padded(rows) each. By the whole
// block; false where a thread's store is.
template <class Count, class Padded, class Store>
__device__ bool lay_out(std::int64_t* sums, int lines, int majors, int minor, const Count& count,
                        const Padded& padded, const Store& store) {
  const int first = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  for (int i = first; i < lines * majors; i += step) {
    std::int64_t sum = 0;
    for (int k = 0; k < minor; ++k) sum += count(i / majors, i % majors * minor + k);
    sums[i] = padded(sum);
  }
  block_all(true);
  for (int line = first; line < lines; line += step) {
    std::int64_t next = 0;
    for (int i = line * majors; i < (line + 1) * majors; ++i) {
      const std::int64_t part = sums[i];
      sums[i] = next;
      next += part;
    }
  }
  block_all(true);
  bool ok = true;
  for (int i = first; i < lines * majors; i += step) {
    std::int64_t next = sums[i];
    for (int k = 0; k < minor; ++k) {
      const int slot = i % majors * minor + k;
      const std::int64_t rows = count(i / majors, slot);
      ok = store(i / majors, slot, rows, next) && ok;
      next += rows;
    }
  }
  return block_all(ok);
}

// The rows of each sender's input, where they are not given; false where they are too many.
__device__ bool lay_out_inputs(const RowParams& rows, const RowPlan& plan) {
  const RowExchangeShape& shape = rows.shape;
  if (shape.is_combine()) return true;
  return lay_out(
      plan.sums, shape.world_size, shape.world_size, shape.experts,
      [&](int rank, int slot) { return plan.counts[rank * plan.slots + slot]; },
      [](std::int64_t sum) { return sum; },
      [&](int rank, int slot, std::int64_t count, std::int64_t begin) {
        plan.begins[rank * plan.slots + slot] = begin;
        return shape.is_in_input(count, begin);
      });
}

// The rows of this rank's output; false where an output, of any rank, has no room.
__device__ bool lay_out_outputs(const RowParams& rows, const RowPlan& plan, int me) {
  const RowExchangeShape& shape = rows.shape;
  return lay_out(
      plan.sums, shape.world_size, shape.majors(), shape.minor(),
      [&](int rank, int slot) {
        return plan.counts[shape.sender(slot) * plan.slots + shape.slot_of_sender(slot, rank)];
      },
      [&](std::int64_t sum) { return shape.padded(sum); },
      [&](int rank, int slot, std::int64_t count, std::int64_t begin) {
        if (rank == me) plan.places[slot] = begin;
        return count == 0 || begin + count <= shape.output_rows;
      });
}

__global__ void SYMM_LAUNCH_BOUNDS(kPlanRowsThreads, 1)
    plan_rows_kernel(const SYMM_GRID_CONSTANT SignalParams signals,
                     const SYMM_GRID_CONSTANT RowParams rows) {
  const RowPlan plan(rows);
  if (!block_all(!SignalThread(signals).is_dead())) return;
  if (!signal_barrier(signals, signals.channel)) return;
  const bool ok = read_splits(rows, plan) && lay_out_inputs(rows, plan) &&
                  lay_out_outputs(rows, plan, signals.rank);
  if (threadIdx.x == 0) {
    *plan.verdict = ok ? 1 : 0;
    *plan.ticket = 0;
  }
  if (!ok) return;
  for (int slot = static_cast<int>(threadIdx.x); slot < plan.slots;
       slot += static_cast<int>(blockDim.x)) {
    const int sent =
        rows.shape.sender(slot) * plan.slots + rows.shape.slot_of_sender(slot, signals.rank);
    rows.results[slot] = plan.counts[sent];
    rows.results[plan.slots + slot] = plan.places[slot];
  }
}

// The last slot that begins at or before `byte` of the output.
__device__ int slot_at(const RowPlan& plan, std::uint64_t row_bytes, std::uint64_t byte) {
  int low = 0;
  int high = plan.slots;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const bool behind = static_cast<std::uint64_t>(plan.places[middle]) * row_bytes > byte;
    (behind ? high : low) = middle;
  }
  return low;
}

// The part of this rank's output that this warp fetches, gaps between experts included.
__device__ void move_share(const RowParams& rows, const RowPlan& plan, int me) {
  const RowExchangeShape& shape = rows.shape;
  const auto sent = [&](int slot) {
    return shape.sender(slot) * plan.slots + shape.slot_of_sender(slot, me);
  };
  const int last = plan.slots - 1;
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(plan.places[last] + plan.counts[sent(last)]) * rows.row_bytes;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * (blockDim.x / kWarpThreads);
  const std::uint64_t warp =
      std::uint64_t{blockIdx.x} * (blockDim.x / kWarpThreads) + threadIdx.x / kWarpThreads;
  const std::uint64_t share = align_up((bytes + warps - 1) / warps, kShareUnit);
  const std::uint64_t begin = min_size(warp * share, bytes);
  const std::uint64_t end = min_size(begin + share, bytes);
  if (begin == end) return;
  for (int slot = slot_at(plan, rows.row_bytes, begin); slot < plan.slots; ++slot) {
    const std::uint64_t place = static_cast<std::uint64_t>(plan.places[slot]) * rows.row_bytes;
    if (place >= end) return;
    const int from = sent(slot);
    const std::uint64_t stop =
        min_size(place + static_cast<std::uint64_t>(plan.counts[from]) * rows.row_bytes, end);
    const std::uint64_t start = place > begin ? place : begin;
    if (start >= stop) continue;
    const std::byte* const source = rows.inputs[shape.sender(slot)] +
                                    static_cast<std::uint64_t>(plan.begins[from]) * rows.row_bytes;
    copy_by_threads(rows.output + start, source + (start - place), stop - start,
                    threadIdx.x % kWarpThreads, kWarpThreads);
  }
}

__global__ void SYMM_LAUNCH_BOUNDS(kMoveRowsThreads, 1)
    move_rows_kernel(const SYMM_GRID_CONSTANT SignalParams signals,
                     const SYMM_GRID_CONSTANT RowParams rows) {
  const RowPlan plan(rows);
  SignalThread thread(signals);
  if (!block_all(!thread.is_dead())) return;
  const bool ok = *plan.verdict != 0;
  if (ok) move_share(rows, plan, signals.rank);
  block_all(true);
  const bool others_are_left = threadIdx.x == 0 && !is_last_block(plan.ticket);
  if (!block_all(!others_are_left)) return;
  if (!signal_barrier(signals, signals.channel) || ok || threadIdx.x != 0) return;
  const SplitFault fault = find_wrong_split(rows.shape, plan.counts, plan.begins);
  thread.refuse(rows.shape, fault.problem == SplitProblem::kNone
                                ? find_full_output(rows.shape, plan.counts)
                                : fault);
}

}  // namespace

const void* plan_rows_kernel_address() { return reinterpret_cast<const void*>(&plan_rows_kernel); }
const void* move_rows_kernel_address() { return reinterpret_cast<const void*>(&move_rows_kernel); }

}  // namespace symm
