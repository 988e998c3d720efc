// Runs a planned collective on the host.
#pragma once

#include "kernels/core/collective.hpp"
#include "kernels/cpu/host_executor.hpp"

namespace symm {

struct Plan;

// Where ranks read each other's processes, an all_to_all whose largest share has more bytes is
// staged (docs/benchmarks.md, "One copy by process_vm_readv").
inline constexpr std::size_t kMostReadShare = std::size_t{4} << 20;

// Provides the slots of a call. `workspace` is requested only by calls that need it, on every rank
// of the group in the same call (a plan follows from shared facts), so making it may be collective.
class SlotProvider {
 public:
  virtual ~SlotProvider() = default;
  struct Slots {
    std::byte* const* bases;  // by rank
    std::size_t slot_bytes;
  };
  virtual Slots small() = 0;
  virtual Slots workspace() = 0;  // may throw Error
};

// Runs `args` between begin() and end() of `executor`. Collective. False when the executor gave up;
// its observer has the reason. At least two ranks; `args` has been validated.
bool run_collective(HostExecutor& executor, const CollectiveArgs& args, const Plan& plan,
                    SlotProvider& slots);

// The collective of a group of one: no peer, no memory. `args` has been validated.
void run_alone(const CollectiveArgs& args, const ReduceKernels* kernels);

}  // namespace symm
