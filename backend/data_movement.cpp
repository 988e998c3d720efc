// The collectives that move data unchanged, and barrier.
#include <string>
#include <utility>

#include "backend/process_group_impl.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

namespace {

// One all_gather, of which the output is one tensor. `index` is that in the coalesced form.
CollectiveCall gather_into(CallBuilder call, const at::Tensor& output, const at::Tensor& input,
                           int index = -1) {
  call.input(input, {"input", index}).output_shares(output, {"output", index});
  return call.build();
}

}  // namespace

WorkPtr ProcessGroupSymm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kBroadcast);
    call.root(opts.rootRank, "src").in_place(call.checks().only(tensors, "tensors"), {"tensor"});
    return impl_->issue(OpType::BROADCAST, "symm:broadcast", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kAllGather);
    call.input(call.checks().only(inputs, "inputs"), {"tensor"})
        .output_list(call.checks().only(outputs, "outputs"), "tensor_list")
        .own_part("tensor_list");
    return impl_->issue(OpType::ALLGATHER, "symm:all_gather", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    return impl_->issue(OpType::_ALLGATHER_BASE, "symm:all_gather_single",
                        gather_into(impl_->builder(CollectiveKind::kAllGather), output, input),
                        opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    const TensorChecks checks = impl_->builder(CollectiveKind::kAllGather).checks();
    checks.list_size(output_lists.size(), static_cast<std::size_t>(size_), "output_tensor_lists");
    for (const Tensors& list : output_lists) {
      checks.list_size(list.size(), inputs.size(), "output_tensor_lists[rank]");
    }
    CallBatch calls;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_ranks;
      for (const Tensors& list : output_lists) of_ranks.push_back(list[i]);
      CallBuilder call = impl_->builder(CollectiveKind::kAllGather);
      call.input(inputs[i], {"input_tensor_list", static_cast<int>(i)})
          .output_list(of_ranks, "output_tensor_lists")
          .own_part("output_tensor_lists");
      calls.push_back(call.build());
    }
    return impl_->issue(OpType::ALLGATHER_COALESCED, "symm:all_gather_coalesced", std::move(calls),
                        opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return with_torch_errors([&] {
    impl_->builder(CollectiveKind::kAllGather)
        .checks()
        .list_size(inputs.size(), outputs.size(), "inputs");
    CallBatch calls;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      calls.push_back(gather_into(impl_->builder(CollectiveKind::kAllGather), outputs[i], inputs[i],
                                  static_cast<int>(i)));
    }
    return impl_->issue(OpType::ALLGATHER_COALESCED, "symm:all_gather_single_coalesced",
                        std::move(calls), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kGather);
    call.root(opts.rootRank, "dst").input(call.checks().only(inputs, "inputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.output_list(call.checks().only(outputs, "gather_list"), "gather_list")
          .even_parts("gather_list");
    } else {
      call.checks().list_size(outputs.size(), 0, "gather_list (on a rank that is not dst)");
    }
    return impl_->issue(OpType::GATHER, "symm:gather", call.build(), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kScatter);
    call.root(opts.rootRank, "src").output(call.checks().only(outputs, "outputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.input_list(call.checks().only(inputs, "scatter_list"), "scatter_list")
          .even_parts("scatter_list");
    } else {
      call.checks().list_size(inputs.size(), 0, "scatter_list (on a rank that is not src)");
    }
    return impl_->issue(OpType::SCATTER, "symm:scatter", call.build(), opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<std::int64_t>& output_splits,
                                        std::vector<std::int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kAllToAll);
    call.input_rows(input, input_splits, "input", "input_split_sizes")
        .output_rows(output, output_splits, "output", "output_split_sizes");
    return impl_->issue(OpType::ALLTOALL_BASE, "symm:all_to_all_single", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kAllToAll);
    call.input_list(inputs, "input_tensor_list").output_list(outputs, "output_tensor_list");
    return impl_->issue(OpType::ALLTOALL, "symm:all_to_all", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::barrier(const c10d::BarrierOptions& opts) {
  return with_torch_errors([&] {
    return impl_->issue(OpType::BARRIER, "symm:barrier", impl_->barrier_call(opts), opts.timeout,
                        opts.asyncOp);
  });
}

void ProcessGroupSymm::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  with_torch_errors([&] {
    impl_->issue(OpType::BARRIER, "symm:monitored_barrier", impl_->barrier_call(opts), opts.timeout,
                 false);
  });
}

}  // namespace symm
