// all_reduce of sparse tensors in coordinates (torch.sparse_coo), which has the operator SUM alone.
//
// NOTE [Sparse all_reduce]
// Every rank ends with the same entries, coalesced: one wherever any rank has one, with the sum of
// the ranks' values there, folded in rank order from zeros where a rank has none. Three collectives
// do it:
//   1. all_gather of shape, dtype and number of entries, of a fixed size;
//   2. all_gather of the entries' places, one int64 each, padded to the longest list;
//   3. all_reduce of the values at the union of the places.
// So its bits are those of all_reduce of the dense tensors, on one host and over several, and no
// rank receives the values of all others. Ranks whose shapes differ all raise after step 1, and
// their group goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "backend/tensor_checks.hpp"
#include "kernels/core/collective.hpp"

namespace symm {

class Communicator;
struct CollectiveCall;

// What the steps are carried out by. Both are collective and may throw.
class SparseSteps {
 public:
  virtual ~SparseSteps() = default;
  // `output` has a first dimension of world_size, of contiguous tensors like `input`.
  virtual void all_gather(at::Tensor output, at::Tensor input) = 0;
  // SUM, in place, of a contiguous tensor.
  virtual void all_reduce(at::Tensor tensor) = 0;
  // Returns once the steps so far have ended; throws what became of one that failed.
  virtual void settle() = 0;
};

class SparseAllReduce {
 public:
  // Local. Keeps `tensor`, which is overwritten by run(). Throws Error(kUnsupported) for another
  // operator than SUM and for shapes that have more dimensions or places than can be sent.
  SparseAllReduce(const TensorChecks& checks, at::Tensor tensor, ReduceOp op);

  const TensorChecks& checks() const { return checks_; }
  // This rank's entries, coalesced: the first dimension counts them.
  const at::Tensor& values() const { return values_; }

  // Collective; the tensor is left alone where it throws. Throws Error(kInvalidArgument) on every
  // rank where shapes or dtypes differ, and what the steps throw.
  void run(SparseSteps& steps) const;

 private:
  std::vector<std::int64_t> facts() const;
  // Throws where the ranks' facts differ; the number of entries of each rank.
  std::vector<std::int64_t> agreed_counts(const at::Tensor& everybody) const;
  at::Tensor places() const;
  at::Tensor indices_at(const at::Tensor& places) const;

  const TensorChecks checks_;
  const at::Tensor tensor_;
  at::Tensor indices_;  // [sparse dimensions, entries]
  at::Tensor values_;
};

// The steps on the host, on the caller's thread.
class HostSparseSteps final : public SparseSteps {
 public:
  // The steps go as `call` does, whose sparse one it is: over hosts, and audited, where that does.
  HostSparseSteps(const CollectiveCall& call, Communicator& communicator,
                  std::chrono::milliseconds timeout)
      : whole_(call), communicator_(communicator), timeout_(timeout) {}
  void all_gather(at::Tensor output, at::Tensor input) override;
  void all_reduce(at::Tensor tensor) override;
  void settle() override {}

 private:
  template <typename Fill>
  void run(CollectiveKind kind, Fill&& fill);

  const CollectiveCall& whole_;
  Communicator& communicator_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace symm
