// The collectives of c10d's interface, and barrier.
#include <utility>

#include "backend/process_group_impl.hpp"

namespace symm {

using c10d::OpType;
using Kind = CollectiveKind;
using WorkPtr = ProcessGroupSymm::WorkPtr;

WorkPtr ProcessGroupSymm::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) [[unlikely]] {
    return allreduce_sparse(tensors, opts);
  }
  return impl_->collective(Kind::kAllReduce, opts, [&](CallBuilder& call) {
    call.reduce(opts.reduceOp).in_place(call.checks().only(tensors, "tensors"), {"tensor"});
  });
}

WorkPtr ProcessGroupSymm::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return with_torch_errors([&]() -> WorkPtr {
    const TensorChecks checks("all_reduce", rank_, size_, impl_->global_rank());
    const at::Tensor& tensor = checks.only(tensors, "tensors");
    if (!tensor.is_sparse()) checks.usable(tensor, {"tensor"});
    if (tensor.is_cuda()) return impl_->all_reduce_sparse_on_device(*this, tensor, opts);
    CallBatch calls;
    calls.resize(1);
    impl_->describe_sparse(calls.front(), tensor, opts.reduceOp);
    return impl_->issue({OpType::_ALLREDUCE_SPARSE, "symm:all_reduce_sparse"}, std::move(calls),
                        opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  return impl_->collectives(
      Kind::kAllReduce, {OpType::ALLREDUCE_COALESCED, "symm:all_reduce_coalesced"}, opts,
      [&](const TensorChecks&) { return tensors.size(); },
      [&](CallBuilder& call, std::size_t i) {
        call.reduce(opts.reduceOp).in_place(tensors[i], {"tensors", i});
      });
}

WorkPtr ProcessGroupSymm::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return impl_->collective(Kind::kReduce, opts, [&](CallBuilder& call) {
    call.root(opts.rootRank, "dst")
        .reduce(opts.reduceOp)
        .in_place(call.checks().only(tensors, "tensors"), {"tensor"});
    if (opts.rootRank != rank_) call.only_read();
  });
}

WorkPtr ProcessGroupSymm::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const Operation operation{OpType::REDUCE_SCATTER, "symm:reduce_scatter"};
  return impl_->collective(Kind::kReduceScatter, operation, opts, [&](CallBuilder& call) {
    call.reduce(opts.reduceOp)
        .output(call.checks().only(outputs, "outputs"), {"output"})
        .input_list(call.checks().only(inputs, "inputs"), "input_list")
        .own_part("input_list");
  });
}

WorkPtr ProcessGroupSymm::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  return impl_->collective(Kind::kReduceScatter, opts, [&](CallBuilder& call) {
    call.reduce(opts.reduceOp).output(output, {"output"}).input_shares(input, {"input"});
  });
}

WorkPtr ProcessGroupSymm::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  // torch 2.11 has no operation type for the coalesced form.
  return impl_->collectives(
      Kind::kReduceScatter, {OpType::_REDUCE_SCATTER_BASE, "symm:reduce_scatter_single_coalesced"},
      opts,
      [&](const TensorChecks& checks) {
        checks.list_size(inputs.size(), outputs.size(), "inputs");
        return outputs.size();
      },
      [&](CallBuilder& call, std::size_t i) {
        call.reduce(opts.reduceOp)
            .output(outputs[i], {"output", i})
            .input_shares(inputs[i], {"input", i});
      });
}

WorkPtr ProcessGroupSymm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return impl_->collective(Kind::kBroadcast, opts, [&](CallBuilder& call) {
    call.root(opts.rootRank, "src").in_place(call.checks().only(tensors, "tensors"), {"tensor"});
  });
}

WorkPtr ProcessGroupSymm::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const Operation operation{OpType::ALLGATHER, "symm:all_gather"};
  return impl_->collective(Kind::kAllGather, operation, opts, [&](CallBuilder& call) {
    call.input(call.checks().only(inputs, "inputs"), {"tensor"})
        .output_list(call.checks().only(outputs, "outputs"), "tensor_list")
        .own_part("tensor_list");
  });
}

WorkPtr ProcessGroupSymm::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  return impl_->collective(Kind::kAllGather, opts, [&](CallBuilder& call) {
    call.input(input, {"input"}).output_shares(output, {"output"});
  });
}

WorkPtr ProcessGroupSymm::allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return impl_->collectives(
      Kind::kAllGather, {OpType::ALLGATHER_COALESCED, "symm:all_gather_coalesced"}, opts,
      [&](const TensorChecks& checks) {
        const auto ranks = static_cast<std::size_t>(size_);
        checks.list_size(output_lists.size(), ranks, "output_tensor_lists");
        for (const Tensors& list : output_lists) {
          checks.list_size(list.size(), inputs.size(), "output_tensor_lists[rank]");
        }
        return inputs.size();
      },
      [&](CallBuilder& call, std::size_t i) {
        Tensors of_ranks;
        for (const Tensors& list : output_lists) of_ranks.push_back(list[i]);
        call.input(inputs[i], {"input_tensor_list", i})
            .output_list(of_ranks, "output_tensor_lists")
            .own_part("output_tensor_lists");
      });
}

WorkPtr ProcessGroupSymm::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return impl_->collectives(
      Kind::kAllGather, {OpType::ALLGATHER_COALESCED, "symm:all_gather_single_coalesced"}, opts,
      [&](const TensorChecks& checks) {
        checks.list_size(inputs.size(), outputs.size(), "inputs");
        return outputs.size();
      },
      [&](CallBuilder& call, std::size_t i) {
        call.input(inputs[i], {"input", i}).output_shares(outputs[i], {"output", i});
      });
}

WorkPtr ProcessGroupSymm::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  return impl_->collective(Kind::kGather, opts, [&](CallBuilder& call) {
    call.root(opts.rootRank, "dst").input(call.checks().only(inputs, "inputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.output_list(call.checks().only(outputs, "gather_list"), "gather_list")
          .even_parts("gather_list");
    } else {
      call.checks().list_size(outputs.size(), 0, "gather_list (on a rank that is not dst)");
    }
  });
}

WorkPtr ProcessGroupSymm::gather_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& opts) {
  return impl_->collective(Kind::kGather, opts, [&](CallBuilder& call) {
    call.root(opts.rootRank, "dst").input(input, {"tensor"});
    if (opts.rootRank == rank_) call.output_shares(output, {"gather_tensor"});
  });
}

WorkPtr ProcessGroupSymm::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& opts) {
  return impl_->collective(Kind::kScatter, opts, [&](CallBuilder& call) {
    call.root(opts.rootRank, "src").output(call.checks().only(outputs, "outputs"), {"tensor"});
    if (opts.rootRank == rank_) {
      call.input_list(call.checks().only(inputs, "scatter_list"), "scatter_list")
          .even_parts("scatter_list");
    } else {
      call.checks().list_size(inputs.size(), 0, "scatter_list (on a rank that is not src)");
    }
  });
}

WorkPtr ProcessGroupSymm::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<std::int64_t>& output_splits,
                                        std::vector<std::int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  return impl_->collective(Kind::kAllToAll, opts, [&](CallBuilder& call) {
    call.input_rows(input, input_splits, "input", "input_split_sizes")
        .output_rows(output, output_splits, "output", "output_split_sizes");
  });
}

WorkPtr ProcessGroupSymm::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& opts) {
  const Operation operation{OpType::ALLTOALL, "symm:all_to_all"};
  return impl_->collective(Kind::kAllToAll, operation, opts, [&](CallBuilder& call) {
    call.input_list(inputs, "input_tensor_list").output_list(outputs, "output_tensor_list");
  });
}

WorkPtr ProcessGroupSymm::barrier(const c10d::BarrierOptions& opts) {
  return with_torch_errors([&] {
    return impl_->issue(operation_of(Kind::kBarrier), impl_->barrier_call(opts), opts.timeout,
                        opts.asyncOp);
  });
}

void ProcessGroupSymm::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  with_torch_errors([&] {
    impl_->issue({OpType::BARRIER, "symm:monitored_barrier"}, impl_->barrier_call(opts),
                 opts.timeout, false);
  });
}

}  // namespace symm
