#include "backend/engine/device/device_choice.hpp"

#include <algorithm>

#include "backend/engine/group/validation.hpp"
#include "kernels/plan/multimem.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

bool is_even(std::span<const Part> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const Part& part) { return part.count == parts[0].count; });
}

// What copy engines would write: one array, and how much of it goes to or comes from one peer.
struct CopyTarget {
  InputArray output;
  std::uint64_t bytes_a_peer = 0;
  bool even = true;  // shares of an all_to_all
};

CopyTarget copy_target(const CollectiveArgs& args) {
  const std::size_t size = dtype_bytes(args.dtype);
  switch (args.kind) {
    case CollectiveKind::kBroadcast:
      return {{args.output, args.count * size}, args.count * size};
    case CollectiveKind::kAllGather: {
      std::size_t largest = 0;
      for (const Part& part : args.output_parts) largest = std::max(largest, part.count);
      return {joined_parts(args.output_parts, size), largest * size};
    }
    case CollectiveKind::kAllToAll:
      if (!is_even(args.input_parts) || !is_even(args.output_parts)) return {{}, 0, false};
      return {joined_parts(args.output_parts, size), args.output_parts[0].count * size};
    default:
      return {};
  }
}

// What multimem would read and write on all ranks at once, where the kind has it; null where that
// is not one array of equal shares.
struct MultimemTarget {
  std::optional<InputArray> input;
  std::optional<InputArray> output;
};

MultimemTarget multimem_target(const CollectiveArgs& args) {
  const std::size_t size = dtype_bytes(args.dtype);
  const InputArray input{args.input, args.count * size};
  const InputArray output{args.output, args.count * size};
  const auto shares = [size](std::span<const Part> parts) {
    return is_even(parts) ? joined_parts(parts, size) : InputArray{};
  };
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
      return {input, output};
    case CollectiveKind::kReduceScatter:
      return {shares(args.input_parts), std::nullopt};
    case CollectiveKind::kAllGather:
      return {std::nullopt, shares(args.output_parts)};
    default:
      return {std::nullopt, output};
  }
}

// What such a segment must be, and the fix.
std::string symmetric_segment(bool call_is_symmetric) {
  return call_is_symmetric ? "a segment of the group; share its memory with the group"
                           : "a segment registered with symmetric=True; register it";
}

}  // namespace

BufferLocation DeviceGroup::location_of(const Found& found) {
  const auto row = static_cast<BufferLocation>(found.segment->row().value());
  return (row + 1) << kLocationShift | found.offset;
}

// Kernels find segments that have a row alone.
std::optional<DeviceGroup::Found> DeviceGroup::find(const void* data, std::size_t bytes) const {
  auto found = context_.group.segments().find(data, bytes);
  if (found && !found->segment->row()) found.reset();
  return found;
}

std::optional<DeviceGroup::Found> DeviceGroup::find_symmetric(const InputArray& array,
                                                              bool call_is_symmetric) const {
  if (array.data == nullptr || array.bytes == 0) return std::nullopt;
  const std::optional<Found> found = find(array.data, array.bytes);
  return found && (call_is_symmetric || found->symmetric) ? found : std::nullopt;
}

// Where copy engines are to write; nullopt where they are not used. Symmetric registration makes
// this the same on every rank; where the use is asymmetric, the call's record says so.
std::optional<DeviceGroup::Found> DeviceGroup::symmetric_output(const CollectiveArgs& args,
                                                                const PlanRequest& request) const {
  const Agreement& agreement = context_.agreement;
  const bool possible = has_algorithm(args.kind, Algorithm::kCopyEngine, PlanTarget::kGpu);
  const bool requested = request.algorithm == Algorithm::kCopyEngine;
  const Algorithm named =
      request.algorithm != Algorithm::kAuto ? request.algorithm : agreement.algorithm;
  const bool forced = named == Algorithm::kCopyEngine;
  if (!possible || world_size() == 1) return std::nullopt;
  const CopyTarget target = copy_target(args);
  if (!forced) {
    const bool other_forced =
        named != Algorithm::kAuto && has_algorithm(args.kind, named, PlanTarget::kGpu);
    if (other_forced || target.bytes_a_peer < agreement.tables.gpu.copy_engine_bytes()) {
      return std::nullopt;
    }
  }
  if (target.bytes_a_peer > 0) {
    if (std::optional<Found> found = find_symmetric(target.output, requested)) return found;
  }
  // A rank whose row of an all_to_all is empty may have peers whose rows are not.
  const bool row_may_be_uneven =
      args.kind == CollectiveKind::kAllToAll && !(requested && target.even);
  if (!forced || (target.bytes_a_peer == 0 && !row_may_be_uneven)) return std::nullopt;
  throw Error(ErrorCode::kUnsupported,
              std::string(collective_name(args.kind)) + " on " + context_.group.rank_name(rank()) +
                  ": the algorithm copy_engine needs an output that is one array with equal "
                  "shares inside " +
                  symmetric_segment(requested) + ", or choose another algorithm");
}

// Where peers may store what they send of a call by lanes: this rank's part of the segment that
// holds the first of its output's parts that comes from a peer.
SymmetricRange DeviceGroup::output_range(const CollectiveArgs& args) const {
  const void* data = args.output;
  for (std::size_t r = 0; r < args.output_parts.size(); ++r) {
    const Part& part = args.output_parts[r];
    if (static_cast<int>(r) == rank() || part.count == 0) continue;
    data = part.data;
    break;
  }
  if (data == nullptr) return {};
  std::optional<Found> found = find(data, 1);
  if (!found) return {};
  found->offset = 0;
  return {found->segment->base(rank()), found->segment->bytes(), location_of(*found)};
}

// Throws the reason where multimem cannot carry out the call. What decides is the same on every
// rank: the call, the group's settings, the multicast object of all ranks, and by
// symmetric registration the location of the tensors. This rank's GPU speaks for all of them: a
// multicast object is had by GPUs that have the instructions alone.
DeviceGroup::Choice DeviceGroup::by_multimem(const CollectiveArgs& args, const Plan& plan,
                                             bool call_is_symmetric) const {
  const std::string call =
      std::string(collective_name(args.kind)) + " on " + context_.group.rank_name(rank()) + ": ";
  const auto symmetric = [&](const InputArray& array, const char* what) {
    const std::string needs = call + "the algorithm multimem needs ";
    std::optional<Found> found = find_symmetric(array, call_is_symmetric);
    if (!found) {
      throw Error(ErrorCode::kUnsupported,
                  needs + "an " + what + " that is one array with equal shares inside " +
                      symmetric_segment(call_is_symmetric) + ", or choose another algorithm");
    }
    const Multicast& multicast = found->segment->multicast();
    if (!multicast.available()) {
      throw Error(ErrorCode::kUnsupported,
                  needs + "a segment with a multicast address, and that of the " + what +
                      " has none: " + multicast.why_not());
    }
    return found;
  };
  const MultimemTarget target = multimem_target(args);
  Choice choice;
  choice.plan = plan;
  if (target.input) choice.symmetric_input = symmetric(*target.input, "input");
  if (target.output) choice.symmetric_output = symmetric(*target.output, "output");
  MultimemFacts facts;
  facts.kind = args.kind;
  facts.dtype = args.dtype;
  facts.op = args.op;
  facts.bytes = args.count * dtype_bytes(args.dtype);
  facts.has_multicast = true;
  facts.architecture = runtime_.identity().architecture;
  facts.input_offset = choice.symmetric_input ? choice.symmetric_input->offset : 0;
  facts.output_offset = choice.symmetric_output ? choice.symmetric_output->offset : 0;
  facts.same_bits = context_.agreement.deterministic;
  if (const std::string refusal = multimem_refusal(facts); !refusal.empty()) {
    throw Error(ErrorCode::kUnsupported, call + refusal);
  }
  return choice;
}

DeviceGroup::Choice DeviceGroup::choose(const CollectiveArgs& args,
                                        const PlanRequest& request) const {
  if (const std::optional<Found> output = symmetric_output(args, request)) {
    return {{Algorithm::kCopyEngine, 0, 0}, std::nullopt, output};
  }
  Choice choice;
  // A group of one has the algorithms of two ranks, without a peer.
  const int plan_world = std::max(2, world_size());
  const std::uint64_t bytes = device_plan_bytes(args, world_size(), wire_, ranks_of_gpu_);
  choice.plan = context_.agreement.tables.gpu_of(wire_).select(
      args.kind, plan_world, bytes, context_.agreement.algorithm, request);
  if (choice.plan.algorithm == Algorithm::kMultimem) {
    if (world_size() > 1 && bytes > 0) {
      return by_multimem(args, choice.plan, request.algorithm == Algorithm::kMultimem);
    }
    // There is nothing to send, so any algorithm will do.
    choice.plan =
        PlanTable::built_in_gpu(wire_).select(args.kind, plan_world, bytes, Algorithm::kAuto);
  }
  return choice;
}

}  // namespace symm
