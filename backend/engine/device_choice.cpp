// How a device carries out a call: the part of DeviceGroup that chooses.
#include <algorithm>

#include "backend/engine/call_record.hpp"
#include "backend/engine/device_group.hpp"

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
      if (!is_even(args.input_parts) || !is_even(args.output_parts)) return {};
      return {joined_parts(args.output_parts, size), args.output_parts[0].count * size};
    default:
      return {};
  }
}

}  // namespace

Place DeviceGroup::Found::place() const {
  return (static_cast<std::uint64_t>(number + 1) << kPlaceShift) | offset;
}

std::optional<DeviceGroup::Found> DeviceGroup::find(const void* data, std::size_t bytes) const {
  const auto& segments = resources_->segments;
  const std::size_t known = std::min<std::size_t>(segments.size(), kMaxSegments);
  for (std::size_t i = 0; i < known; ++i) {
    if (!segments[i].segment) continue;
    const LocalSegment& local = *segments[i].segment->local();
    if (!local.contains(data, bytes)) continue;
    return Found{static_cast<int>(i),
                 static_cast<std::size_t>(static_cast<const std::byte*>(data) - local.base())};
  }
  return std::nullopt;
}

// Where copy engines are to write; nullopt where they are not used. A promise makes this the same
// on every rank; where it is broken, the call's record says so.
std::optional<DeviceGroup::Found> DeviceGroup::promised_output(const CollectiveArgs& args) const {
  const Agreement& agreement = context_.agreement;
  const bool possible = has_algorithm(args.kind, Algorithm::kCopyEngine, PlanTarget::kGpu);
  const bool forced = agreement.algorithm == Algorithm::kCopyEngine;
  if (!possible || world_size() == 1) return std::nullopt;
  const CopyTarget target = copy_target(args);
  if (!forced) {
    const bool other_forced = agreement.algorithm != Algorithm::kAuto &&
                              has_algorithm(args.kind, agreement.algorithm, PlanTarget::kGpu);
    if (other_forced || target.bytes_a_peer < agreement.tables.gpu.copy_engine_bytes()) {
      return std::nullopt;
    }
  }
  if (target.output.data != nullptr && target.bytes_a_peer > 0) {
    const std::optional<Found> found = find(target.output.data, target.output.bytes);
    if (found && resources_->segments[static_cast<std::size_t>(found->number)].symmetric) {
      return found;
    }
  }
  if (!forced || (target.bytes_a_peer == 0 && args.kind != CollectiveKind::kAllToAll)) {
    return std::nullopt;
  }
  throw Error(ErrorCode::kUnsupported,
              std::string(collective_name(args.kind)) + " on rank " + std::to_string(rank()) +
                  ": the algorithm copy_engine needs an output that is one array with equal "
                  "shares inside a segment registered with symmetric=True; register it, or choose "
                  "another algorithm");
}

DeviceGroup::Choice DeviceGroup::choose(const CollectiveArgs& args) const {
  if (const std::optional<Found> output = promised_output(args)) {
    return {{Algorithm::kCopyEngine, 0, 0}, std::nullopt, output};
  }
  Choice choice;
  // A group of one has the methods of two ranks, without a peer.
  choice.plan = context_.agreement.tables.gpu.select(args.kind, std::max(2, world_size()),
                                                     plan_bytes(args, world_size()),
                                                     context_.agreement.algorithm);
  const InputArray input = input_array(args, rank(), choice.plan.algorithm);
  if (input.data != nullptr && input.bytes > 0) choice.input = find(input.data, input.bytes);
  return choice;
}

}  // namespace symm
