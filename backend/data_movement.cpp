// The collectives that move data unchanged, and barrier.
#include <string>
#include <utility>

#include "backend/ProcessGroupSymm.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

WorkPtr ProcessGroupSymm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kBroadcast);
    call.root(opts.rootRank, "src").in_place(call.checks().only(tensors, "tensors"), {"tensor"});
    return issue(OpType::BROADCAST, "symm:broadcast", one(call.build()), opts.timeout,
                 opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kAllGather);
    call.input(call.checks().only(inputs, "inputs"), {"tensor"})
        .output_list(call.checks().only(outputs, "outputs"), "tensor_list")
        .own_part("tensor_list");
    return issue(OpType::ALLGATHER, "symm:all_gather", one(call.build()), opts.timeout,
                 opts.asyncOp);
  });
}

CollectiveCall ProcessGroupSymm::gather_into(at::Tensor& output, at::Tensor& input,
                                             int index) const {
  CallBuilder call = builder(CollectiveKind::kAllGather);
  call.input(input, {"input", index}).output_shares(output, {"output", index});
  return call.build();
}

WorkPtr ProcessGroupSymm::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    return issue(OpType::_ALLGATHER_BASE, "symm:all_gather_single",
                 one(gather_into(output, input, -1)), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    const TensorChecks checks = builder(CollectiveKind::kAllGather).checks();
    checks.list_size(output_lists.size(), static_cast<std::size_t>(size_), "output_tensor_lists");
    for (const Tensors& list : output_lists) {
      checks.list_size(list.size(), inputs.size(), "output_tensor_lists[rank]");
    }
    CallBatch calls;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_ranks;
      for (const Tensors& list : output_lists) of_ranks.push_back(list[i]);
      CallBuilder call = builder(CollectiveKind::kAllGather);
      call.input(inputs[i], {"input_tensor_list", static_cast<int>(i)})
          .output_list(of_ranks, "output_tensor_lists")
          .own_part("output_tensor_lists");
      calls.push_back(call.build());
    }
    return issue(OpType::ALLGATHER_COALESCED, "symm:all_gather_coalesced", std::move(calls),
                 opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    builder(CollectiveKind::kAllGather).checks().list_size(inputs.size(), outputs.size(), "inputs");
    CallBatch calls;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      calls.push_back(gather_into(outputs[i], inputs[i], static_cast<int>(i)));
    }
    return issue(OpType::ALLGATHER_COALESCED, "symm:all_gather_single_coalesced", std::move(calls),
                 opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kGather);
    call.root(opts.rootRank, "dst").input(call.checks().only(inputs, "inputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.output_list(call.checks().only(outputs, "gather_list"), "gather_list")
          .even_parts("gather_list");
    } else {
      call.checks().list_size(outputs.size(), 0, "gather_list (on a rank that is not dst)");
    }
    return issue(OpType::GATHER, "symm:gather", one(call.build()), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kScatter);
    call.root(opts.rootRank, "src").output(call.checks().only(outputs, "outputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.input_list(call.checks().only(inputs, "scatter_list"), "scatter_list")
          .even_parts("scatter_list");
    } else {
      call.checks().list_size(inputs.size(), 0, "scatter_list (on a rank that is not src)");
    }
    return issue(OpType::SCATTER, "symm:scatter", one(call.build()), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<std::int64_t>& output_splits,
                                        std::vector<std::int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kAllToAll);
    call.input_rows(input, input_splits, "input", "input_split_sizes")
        .output_rows(output, output_splits, "output", "output_split_sizes");
    return issue(OpType::ALLTOALL_BASE, "symm:all_to_all_single", one(call.build()), opts.timeout,
                 opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = builder(CollectiveKind::kAllToAll);
    call.input_list(inputs, "input_tensor_list").output_list(outputs, "output_tensor_list");
    return issue(OpType::ALLTOALL, "symm:all_to_all", one(call.build()), opts.timeout,
                 opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::barrier(const c10d::BarrierOptions& opts) {
  return with_torch_errors([&] {
    return issue(OpType::BARRIER, "symm:barrier", one(barrier_call(opts)), opts.timeout,
                 opts.asyncOp);
  });
}

void ProcessGroupSymm::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  with_torch_errors([&] {
    issue(OpType::BARRIER, "symm:monitored_barrier", one(barrier_call(opts)), opts.timeout, false);
  });
}

}  // namespace symm
