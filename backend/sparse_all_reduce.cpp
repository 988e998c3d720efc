#include "backend/sparse_all_reduce.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/WorkSymm.hpp"
#include "backend/nan_check.hpp"
#include "backend/process_group_impl.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {
namespace {

// A rank's facts: these, then the sizes.
enum Fact : std::size_t { kEntries, kDtype, kSparseDimensions, kDimensions, kFacts };
constexpr std::size_t kMostDimensions = 60;
constexpr std::int64_t kNoPlace = -1;

std::string described(const std::int64_t* facts) {
  constexpr auto kMost = static_cast<std::int64_t>(kMostDimensions);  // whatever a peer says
  const std::int64_t dimensions = std::clamp<std::int64_t>(facts[kDimensions], 0, kMost);
  const c10::IntArrayRef sizes(facts + kFacts, static_cast<std::size_t>(dimensions));
  return text_of(c10::toString(static_cast<c10::ScalarType>(facts[kDtype])), " ", printed(sizes),
                 " with ", facts[kSparseDimensions], " sparse dimensions");
}

// Whether places of a tensor whose sparse dimensions have these sizes are int64 numbers.
bool can_be_numbered(c10::IntArrayRef sizes) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t size : sizes) left /= std::max<std::int64_t>(size, 1);
  return left > 0;
}

}  // namespace

SparseAllReduce::SparseAllReduce(const TensorChecks& checks, at::Tensor tensor, ReduceOp op)
    : checks_(checks), tensor_(std::move(tensor)) {
  const Argument argument{"tensor"};
  if (op != ReduceOp::kSum) {
    checks_.fail(
        ErrorCode::kUnsupported, {"op"},
        text_of("expected SUM, the only operator of sparse tensors, got ", reduce_op_name(op)));
  }
  const std::size_t dimensions = tensor_.sizes().size();
  if (dimensions > kMostDimensions ||
      !can_be_numbered(tensor_.sizes().slice(0, static_cast<std::size_t>(tensor_.sparse_dim())))) {
    checks_.fail(ErrorCode::kUnsupported, argument,
                 text_of("expected a sparse tensor of at most ", kMostDimensions,
                         " dimensions and 2^63 places, got ", printed(tensor_.sizes())));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor coalesced = tensor_.coalesce();
  indices_ = coalesced._indices();
  values_ = coalesced._values().contiguous();
}

std::vector<std::int64_t> SparseAllReduce::facts() const {
  std::vector<std::int64_t> facts(kFacts + kMostDimensions);
  facts[kEntries] = values_.size(0);
  facts[kDtype] = static_cast<std::int64_t>(tensor_.scalar_type());
  facts[kSparseDimensions] = tensor_.sparse_dim();
  facts[kDimensions] = tensor_.dim();
  std::ranges::copy(tensor_.sizes(), facts.begin() + kFacts);
  return facts;
}

std::vector<std::int64_t> SparseAllReduce::agreed_counts(const at::Tensor& everybody) const {
  const std::int64_t width = everybody.size(1);
  const auto* const all = everybody.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < everybody.size(0); ++rank) {
    const std::int64_t* const theirs = all + rank * width;
    if (theirs[kEntries] < 0) {
      throw Error(ErrorCode::kSecurity, "all_reduce: tensor: rank ", rank, " says that it has ",
                  theirs[kEntries], " entries");
    }
    counts.push_back(theirs[kEntries]);
    if (std::equal(theirs + kDtype, theirs + width, all + kDtype)) continue;
    checks_.fail(ErrorCode::kInvalidArgument, {"tensor"},
                 text_of("expected sparse tensors of one shape and dtype, got ", described(all),
                         " on rank 0 and ", described(theirs), " on rank ", rank));
  }
  return counts;
}

at::Tensor SparseAllReduce::places() const {
  at::Tensor places = at::zeros({indices_.size(1)}, indices_.options());
  for (std::int64_t dim = 0; dim < indices_.size(0); ++dim) {
    places.mul_(tensor_.size(dim)).add_(indices_.select(0, dim));
  }
  return places;
}

at::Tensor SparseAllReduce::indices_at(const at::Tensor& places) const {
  at::Tensor indices = at::empty({indices_.size(0), places.size(0)}, places.options());
  at::Tensor left = places;
  for (std::int64_t dim = indices_.size(0) - 1; dim >= 0; --dim) {
    indices.select(0, dim).copy_(at::remainder(left, tensor_.size(dim)));
    left = at::div(left, tensor_.size(dim), "floor");
  }
  return indices;
}

void SparseAllReduce::run(SparseSteps& steps) const {
  const at::NoGradGuard no_grad;
  const std::int64_t ranks = checks_.world_size();

  std::vector<std::int64_t> mine = facts();
  const auto width = static_cast<std::int64_t>(mine.size());
  const at::Tensor sent = at::empty({width}, at::kLong);
  std::ranges::copy(mine, sent.mutable_data_ptr<std::int64_t>());
  const at::Tensor everybody = at::empty({ranks, width}, indices_.options());
  steps.all_gather(everybody, sent.to(indices_.device()));
  steps.settle();  // what a failed step leaves are no facts
  const std::vector<std::int64_t> counts = agreed_counts(everybody.cpu());

  const std::int64_t longest = std::ranges::max(counts);
  if (longest == 0) return;  // nobody has an entry
  const at::Tensor own = places();
  const at::Tensor padded = at::full({longest}, kNoPlace, own.options());
  padded.narrow(0, 0, own.size(0)).copy_(own);
  const at::Tensor all = at::empty({ranks, longest}, own.options());
  steps.all_gather(all, padded);
  steps.settle();
  const at::Tensor found = std::get<0>(at::_unique2(all, /*sorted=*/true));
  const at::Tensor every = found.masked_select(found.ge(0));

  std::vector<std::int64_t> sizes = values_.sizes().vec();
  sizes[0] = every.size(0);
  const at::Tensor sums = at::zeros(sizes, values_.options());
  sums.index_copy_(0, at::searchsorted(every, own), values_);
  steps.all_reduce(sums);
  steps.settle();
  tensor_.copy_(at::sparse_coo_tensor(indices_at(every), sums, tensor_.sizes(), tensor_.options(),
                                      /*is_coalesced=*/true));
}

void HostSparseSteps::all_gather(at::Tensor output, at::Tensor input) {
  run(CollectiveKind::kAllGather, [&](CallBuilder& call) {
    call.input(input, {"places"}).output_shares(output, {"places of all ranks"});
  });
}

void HostSparseSteps::all_reduce(at::Tensor tensor) {
  run(CollectiveKind::kAllReduce,
      [&](CallBuilder& call) { call.reduce(c10d::ReduceOp::SUM).in_place(tensor, {"values"}); });
}

template <typename Fill>
void HostSparseSteps::run(CollectiveKind kind, Fill&& fill) {
  static const NanCheck kNone("", false);  // the caller's values have been looked at
  CollectiveCall call;
  const TensorChecks& checks = whole_.sparse->checks();
  CallBuilder builder(call, kind, checks.rank(), checks.world_size(), checks.global_rank(), -1,
                      kNone);
  fill(builder);
  builder.finish();
  call.hosts = whole_.hosts;
  call.audit = whole_.audit;
  run_on_host(call, communicator_, timeout_);
}

namespace {

// Operations of the current stream.
class DeviceSparseSteps final : public SparseSteps {
 public:
  DeviceSparseSteps(ProcessGroupSymm& group, const DeviceStreams& streams,
                    std::chrono::milliseconds timeout)
      : group_(group), streams_(streams), timeout_(timeout) {}
  void all_gather(at::Tensor output, at::Tensor input) override {
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    options.asyncOp = false;
    wait(group_._allgather_base(output, input, options));
  }
  void all_reduce(at::Tensor tensor) override {
    c10d::AllreduceOptions options;
    options.timeout = timeout_;
    options.asyncOp = false;
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    wait(group_.allreduce(tensors, options));
  }
  void settle() override {
    streams_.current().synchronize();
    streams_.check();
  }

 private:
  static void wait(const ProcessGroupSymm::WorkPtr& work) {
    if (work) work->wait();
  }

  ProcessGroupSymm& group_;
  const DeviceStreams& streams_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace

void ProcessGroupSymm::Impl::describe_sparse(CollectiveCall& call, const at::Tensor& tensor,
                                             const c10d::ReduceOp& op) {
  const TensorChecks checks(collective_name(CollectiveKind::kAllReduce), rank_, size_,
                            global_rank());
  double factor = 0;
  auto sparse = std::make_shared<SparseAllReduce>(checks, tensor, checks.reduce_op(op, factor));
  // What the call is checked and recorded as.
  CallBuilder as_dense = builder(call, CollectiveKind::kAllReduce);
  as_dense.reduce(op).in_place(sparse->values(), {"tensor"});
  as_dense.finish();
  call.outputs.assign(1, tensor);
  call.sparse = std::move(sparse);
}

// The host waits for the sizes, so it can wait for the end as well.
ProcessGroupSymm::WorkPtr ProcessGroupSymm::Impl::all_reduce_sparse_on_device(
    ProcessGroupSymm& group, const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  const char* const problem = coalescing()                   ? "in a coalescing block"
                              : is_captured(tensor.device()) ? "while a graph is captured"
                                                             : nullptr;
  if (problem != nullptr) {
    throw Error(
        ErrorCode::kUnsupported, "all_reduce: tensor: expected a dense one ", problem,
        ", got a sparse one, for which the host has to learn the ranks' numbers of entries");
  }
  CollectiveCall call;
  describe_sparse(call, tensor, opts.reduceOp);
  DeviceSparseSteps steps(group, *device_launcher(tensor.device()).streams(), opts.timeout);
  call.sparse->run(steps);
  current_stream(tensor.device()).synchronize();
  const Operation operation =
      Operation{c10d::OpType::_ALLREDUCE_SPARSE, "symm:all_reduce_sparse"}.watched();
  auto work = c10::make_intrusive<WorkSymm>(rank_, operation.type, operation.title,
                                            sequence_.load(), TensorVector{tensor});
  work->finish_at_birth();
  return work;
}

}  // namespace symm
