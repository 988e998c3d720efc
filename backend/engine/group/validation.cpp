#include "backend/engine/group/validation.hpp"

#include <string>

#include "backend/engine/group/settings.hpp"
#include "kernels/core/error.hpp"
#include "kernels/cpu/host_collectives.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

namespace {

// What a rank must bring: a pointer where it says that it has elements, a list of all ranks.
class Checker {
 public:
  Checker(const CollectiveArgs& args, int rank, int world_size, const RankNames& names)
      : args_(args), rank_(rank), world_size_(world_size), names_(names) {}

  void buffer(const void* pointer, const char* name) const {
    if (args_.count > 0 && pointer == nullptr) refuse(std::string(name) + ": expected memory");
  }

  void parts(std::span<const Part> parts, const char* name) const {
    if (parts.size() != static_cast<std::size_t>(world_size_)) {
      refuse(std::string(name) + ": expected one part a rank, " + std::to_string(world_size_) +
             "; got " + std::to_string(parts.size()));
    }
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (parts[r].count > 0 && parts[r].data == nullptr) {
        refuse(std::string(name) + "[" + std::to_string(r) + "]: expected memory");
      }
    }
  }

  void equal(std::size_t count, std::size_t expected, const std::string& name) const {
    if (count != expected) {
      refuse(name + ": expected " + std::to_string(expected) + " elements, got " +
             std::to_string(count));
    }
  }

  void uniform(std::span<const Part> parts, const char* name) const {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      equal(parts[r].count, args_.count, std::string(name) + "[" + std::to_string(r) + "]");
    }
  }

  void root() const {
    if (args_.root < 0 || args_.root >= world_size_) {
      refuse("root: expected a group rank from 0 to " + std::to_string(world_size_ - 1) + ", got " +
             std::to_string(args_.root));
    }
  }

  bool at_root() const { return rank_ == args_.root; }

  [[noreturn]] void refuse(const std::string& message) const {
    throw Error(ErrorCode::kInvalidArgument, collective_name(args_.kind), " on ",
                names_.name(rank_), ": ", message);
  }

 private:
  const CollectiveArgs& args_;
  int rank_;
  int world_size_;
  const RankNames& names_;
};

}  // namespace

void validate_collective(const CollectiveArgs& args, int rank, int world_size,
                         const RankNames& names) {
  const Checker check(args, rank, world_size, names);
  if (reduces(args.kind) && !op_supports(args.op, args.dtype)) {
    throw Error(ErrorCode::kUnsupported, std::string(collective_name(args.kind)) + ": ReduceOp " +
                                             std::string(reduce_op_name(args.op)) +
                                             " has no meaning for dtype " +
                                             std::string(dtype_name(args.dtype)));
  }
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
      check.buffer(args.input, "input");
      check.buffer(args.output, "output");
      break;
    case CollectiveKind::kReduce:
      check.root();
      check.buffer(args.input, "input");
      if (check.at_root()) check.buffer(args.output, "output");
      break;
    case CollectiveKind::kBroadcast:
      check.root();
      check.buffer(args.output, "output");
      if (check.at_root()) check.buffer(args.input, "input");
      break;
    case CollectiveKind::kAllGather:
      check.buffer(args.input, "input");
      check.parts(args.output_parts, "output");
      check.equal(args.output_parts[static_cast<std::size_t>(rank)].count, args.count,
                  "output[" + std::to_string(rank) + "]");
      break;
    case CollectiveKind::kGather:
      check.root();
      check.buffer(args.input, "input");
      if (check.at_root()) {
        check.parts(args.output_parts, "output");
        check.uniform(args.output_parts, "output");
      }
      break;
    case CollectiveKind::kScatter:
      check.root();
      check.buffer(args.output, "output");
      if (check.at_root()) {
        check.parts(args.input_parts, "input");
        check.uniform(args.input_parts, "input");
      }
      break;
    case CollectiveKind::kReduceScatter:
      check.parts(args.input_parts, "input");
      check.equal(args.count, args.input_parts[static_cast<std::size_t>(rank)].count, "output");
      check.buffer(args.output, "output");
      break;
    case CollectiveKind::kAllToAll: {
      check.parts(args.input_parts, "input");
      check.parts(args.output_parts, "output");
      const auto self = static_cast<std::size_t>(rank);
      check.equal(args.output_parts[self].count, args.input_parts[self].count,
                  "output[" + std::to_string(rank) + "]");
      break;
    }
    case CollectiveKind::kBarrier:
      break;
  }
}

void validate_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                      const Agreement& agreement) {
  if (request.empty()) [[likely]]
    return;
  const std::size_t slot = request.algorithm == Algorithm::kOneShot
                               ? kSmallSlotBytes
                               : agreement.workspace_bytes / kSlots;
  check_request(kind, request, target, slot);
}

}  // namespace symm
