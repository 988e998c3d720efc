#include "kernels/plan/plan_request.hpp"

#include <algorithm>

#include "kernels/core/error.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

namespace {

class RequestCheck {
 public:
  RequestCheck(CollectiveKind kind, const PlanRequest& request, PlanTarget target)
      : kind_(kind), request_(request), target_(target) {}

  void algorithm() const {
    if (request_.algorithm == Algorithm::kAuto) return;
    if (has_algorithm(kind_, request_.algorithm, target_)) return;
    refuse("algorithm", "expected one of auto, " + algorithm_list(kind_, target_) + on_target() +
                            "; got " + std::string(algorithm_name(request_.algorithm)));
  }

  void channels() const {
    if (request_.channels == 0) return;
    if (target_ == PlanTarget::kHost) {
      refuse("channels", "they are blocks of a GPU's kernel, so there are none on the host; got " +
                             std::to_string(request_.channels));
    }
    if (!launches_blocks()) refuse_as_absent("channels");
    if (request_.channels < 1 || request_.channels > kMaxChannels) {
      refuse("channels", "expected 1 to " + std::to_string(kMaxChannels) + ", got " +
                             std::to_string(request_.channels));
    }
  }

  void chunk_bytes(std::size_t largest) const {
    const std::size_t asked = request_.chunk_bytes;
    if (asked == 0) return;
    if (!streams_through_slots()) refuse_as_absent("chunk_bytes");
    const std::size_t least = std::min(kLeastChunkBytes, largest);  // slots may be smaller
    if (asked < least || asked > largest || asked % kCacheLine != 0) {
      refuse("chunk_bytes", "expected a multiple of " + std::to_string(kCacheLine) + " from " +
                                std::to_string(least) + " to " + std::to_string(largest) +
                                ", the slot of the group" + on_target() + "; got " +
                                std::to_string(asked));
    }
  }

 private:
  // all_to_all uses p2p channels, in a number of its own.
  bool launches_blocks() const {
    return kind_ != CollectiveKind::kAllToAll && request_.algorithm != Algorithm::kCopyEngine;
  }

  // True also where the table decides, which may choose an algorithm without chunks.
  bool streams_through_slots() const {
    if (target_ == PlanTarget::kHost) return true;
    const bool has_slots = request_.algorithm != Algorithm::kLL &&
                           request_.algorithm != Algorithm::kLLTwoShot &&
                           request_.algorithm != Algorithm::kMultimem;
    return launches_blocks() && has_slots;
  }

  std::string on_target() const {
    return target_ == PlanTarget::kHost ? " on the host" : " on a GPU";
  }

  [[noreturn]] void refuse_as_absent(const char* part) const {
    refuse(part, "the algorithm " + std::string(algorithm_name(request_.algorithm)) + " of " +
                     std::string(collective_name(kind_)) + on_target() + " has none; leave it out");
  }

  [[noreturn]] void refuse(const char* part, const std::string& problem) const {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(collective_name(kind_)) + ": config." + part + ": " + problem);
  }

  CollectiveKind kind_;
  const PlanRequest& request_;
  PlanTarget target_;
};

}  // namespace

void check_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                   std::size_t largest_chunk) {
  const RequestCheck check(kind, request, target);
  check.algorithm();
  check.channels();
  check.chunk_bytes(largest_chunk);
}

}  // namespace symm
