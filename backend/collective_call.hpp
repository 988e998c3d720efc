// From the tensors of a c10d call to the CollectiveArgs of the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/tensor_checks.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/plan/plan_request.hpp"

namespace symm {

class CallAudit;
class HostGroup;
class DevicePoint;
class NanCheck;
class SparseAllReduce;

// A copy between contiguous tensors of one device, shape and dtype.
struct TensorCopy {
  at::Tensor to;
  at::Tensor from;
};

// One collective, ready to run, with everything that its pointers lead to. Movable: the parts live
// on the heap, so the spans in `args` stay right.
struct CollectiveCall {
  CollectiveArgs args;
  at::Device device = at::kCPU;  // of all tensors
  // What the device must have passed before a call on the host begins; may be null.
  std::shared_ptr<DevicePoint> after;
  std::vector<Part> input_parts;
  std::vector<Part> output_parts;
  c10::SmallVector<at::Tensor, 2> outputs;  // what the caller gets; the value of the future
  c10::SmallVector<at::Tensor, 2> inputs;   // kept alive until the call is done
  PlanRequest request;                      // a plan of the call's own
  std::shared_ptr<CallAudit> audit;         // may be null
  std::shared_ptr<HostGroup> hosts;         // of a group over several hosts, which carries it out
  // Carries out the call in place of the engine where it is not null.
  std::shared_ptr<const SparseAllReduce> sparse;
  std::vector<TensorCopy> copies_before;  // part of the call, where it runs: into stages
  std::vector<TensorCopy> copies_after;   // the same: out of them
};

// What the user gave, for records of calls. Of the collectives whose tensors are of one size both
// sides are there, since what reads the records compares them.
struct CallSides {
  at::ArrayRef<at::Tensor> inputs;
  at::ArrayRef<at::Tensor> outputs;
};
CallSides sides_of(const CollectiveCall& call);

// `tensor` itself where it is contiguous and no lazily conjugated or negated view, else a copy that
// is.
at::Tensor plain(const at::Tensor& tensor);

// On the host at once, on a GPU on the current stream.
void copy_tensors(const std::vector<TensorCopy>& copies);

// The calls of one c10d operation; more than one for the coalesced forms.
using CallBatch = c10::SmallVector<CollectiveCall, 1>;

// Fills in one call, checking each tensor as it is added. Inputs that are only read may be
// non-contiguous: a contiguous copy is made and kept. All tensors are on one device; `gpu` is as
// for TensorChecks::group_device. Throws as TensorChecks and NanCheck do.
class CallBuilder {
 public:
  // `call` is empty, and outlives the builder as `nan_check` does.
  CallBuilder(CollectiveCall& call, CollectiveKind kind, int rank, int world_size,
              std::int64_t global_rank, int gpu, const NanCheck& nan_check);

  const TensorChecks& checks() const { return checks_; }

  // A reduction's operator; must come before the tensors.
  CallBuilder& reduce(const c10d::ReduceOp& op);
  CallBuilder& root(std::int64_t root, const char* name);

  // One tensor that is read and overwritten. Dense in any order of dimensions.
  CallBuilder& in_place(const at::Tensor& tensor, Argument argument);
  // After in_place(): the tensor is not overwritten.
  void only_read() { call_.args.output = nullptr; }
  CallBuilder& input(const at::Tensor& tensor, Argument argument);
  CallBuilder& output(const at::Tensor& tensor, Argument argument);

  // A list with one tensor a rank.
  CallBuilder& input_list(const std::vector<at::Tensor>& tensors, const char* name);
  CallBuilder& output_list(const std::vector<at::Tensor>& tensors, const char* name);

  // One tensor that holds every rank's share one after the other, each as large as the input or
  // output that was added before.
  CallBuilder& input_shares(const at::Tensor& tensor, Argument argument);
  CallBuilder& output_shares(const at::Tensor& tensor, Argument argument);

  // The same with rank r's share being rows[r] entries of dimension 0; equal where rows is empty.
  CallBuilder& input_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                          const char* name, const char* rows_name);
  CallBuilder& output_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                           const char* name, const char* rows_name);

  // Every part has as many elements as the input or output has.
  CallBuilder& even_parts(const char* name);
  // The own part of a list has as many elements as the input or output has.
  CallBuilder& own_part(const char* name);

  // The last step: checks that nothing overlaps that must not.
  void finish();

 private:
  // `tensor` has the element type and the device of the tensors before it.
  void join(const at::Tensor& tensor, const Argument& argument);
  const at::Tensor& kept_input(const at::Tensor& tensor, const Argument& argument);
  void* kept_output(const at::Tensor& tensor, const Argument& argument);
  void add_shares(std::vector<Part>& parts, const at::Tensor& tensor);
  void add_rows(std::vector<Part>& parts, const at::Tensor& tensor,
                const std::vector<std::int64_t>& rows, const char* name, const char* rows_name);
  void check_part(std::size_t rank, const char* name) const;
  void check_overlap() const;

  TensorChecks checks_;
  const NanCheck& nan_check_;
  CollectiveCall& call_;
  at::ScalarType scalar_type_ = at::ScalarType::Undefined;
  int gpu_;
  bool reduces_ = false;
};

}  // namespace symm
