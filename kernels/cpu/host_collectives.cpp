#include "kernels/cpu/host_collectives.hpp"

#include <cstring>

#include "kernels/algorithms/all_gather.hpp"
#include "kernels/algorithms/all_reduce.hpp"
#include "kernels/algorithms/all_reduce_ring.hpp"
#include "kernels/algorithms/all_to_all.hpp"
#include "kernels/algorithms/barrier.hpp"
#include "kernels/algorithms/broadcast.hpp"
#include "kernels/algorithms/gather.hpp"
#include "kernels/algorithms/reduce.hpp"
#include "kernels/algorithms/reduce_scatter.hpp"
#include "kernels/algorithms/scatter.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

bool run_all_reduce(HostExecutor& x, const CollectiveArgs& args, Algorithm algorithm) {
  const std::size_t bytes = args.count * x.element_bytes();
  switch (algorithm) {
    case Algorithm::kRing:
      return all_reduce_ring(x, args.input, args.output, bytes);
    case Algorithm::kTwoShot:
      return all_reduce_two_shot(x, args.input, args.output, bytes);
    default:
      return all_reduce_one_shot(x, args.input, args.output, bytes);
  }
}

bool run_all_to_all(HostExecutor& x, const CollectiveArgs& args, const Plan& plan,
                    SlotProvider& slots) {
  // Step 0 uses the small slots under every plan: it decides whether the workspace is needed.
  const SlotProvider::Slots small = slots.small();
  x.use_slots(small.bases, small.slot_bytes, small.slot_bytes);
  AllToAllState state;
  if (!all_to_all_exchange_counts(x, args.input_parts.data(), args.output_parts.data(), &state)) {
    return false;
  }
  if (state.largest == 0) return true;
  if (state.readable && state.largest <= kMostReadShare) {
    return all_to_all_read(x, args.output_parts.data(), state);
  }
  if (uses_workspace(plan.algorithm)) {
    const SlotProvider::Slots workspace = slots.workspace();
    x.use_slots(workspace.bases, workspace.slot_bytes, plan.chunk_bytes);
  }
  return all_to_all_rounds(x, args.input_parts.data(), args.output_parts.data(), state);
}

}  // namespace

bool run_collective(HostExecutor& x, const CollectiveArgs& args, const Plan& plan,
                    SlotProvider& slots) {
  if (args.kind == CollectiveKind::kAllToAll) return run_all_to_all(x, args, plan, slots);
  const SlotProvider::Slots chosen =
      uses_workspace(plan.algorithm) ? slots.workspace() : slots.small();
  x.use_slots(chosen.bases, chosen.slot_bytes, plan.chunk_bytes);
  const std::size_t bytes = args.count * x.element_bytes();
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
      return run_all_reduce(x, args, plan.algorithm);
    case CollectiveKind::kReduce:
      return plan.algorithm == Algorithm::kTwoShot
                 ? reduce_two_shot(x, args.input, args.output, bytes, args.root)
                 : reduce_one_shot(x, args.input, args.output, bytes, args.root);
    case CollectiveKind::kBroadcast:
      return broadcast(x, args.input, args.output, bytes, args.root);
    case CollectiveKind::kAllGather:
      return all_gather(x, args.input, args.output_parts.data());
    case CollectiveKind::kGather:
      return gather(x, args.input, bytes, args.output_parts.data(), args.root);
    case CollectiveKind::kScatter:
      return scatter(x, args.input_parts.data(), args.output, bytes, args.root);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(x, args.input_parts.data(), args.output);
    case CollectiveKind::kBarrier:
      return barrier(x);
    case CollectiveKind::kAllToAll:
      break;
  }
  return false;
}

void run_alone(const CollectiveArgs& args, const ReduceKernels* kernels) {
  const bool has_input_parts = !args.input_parts.empty();
  const void* input = has_input_parts ? args.input_parts[0].data : args.input;
  void* output = args.output_parts.empty() ? args.output : args.output_parts[0].data;
  const std::size_t count = has_input_parts ? args.input_parts[0].count : args.count;
  if (count == 0 || args.kind == CollectiveKind::kBarrier) return;
  if (reduces(args.kind)) {
    kernels->reduce(output, &input, 1, &args.factor, 1, count);
  } else if (output != input) {
    std::memcpy(output, input, count * dtype_bytes(args.dtype));
  }
}

}  // namespace symm
