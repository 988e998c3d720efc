// The collectives that combine values: all_reduce, reduce, reduce_scatter and their other forms.
#include <string>
#include <utility>

#include "backend/process_group_impl.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

namespace {

// One reduce_scatter, of which the input is one tensor. `index` is that in the coalesced form.
CollectiveCall scatter_from(CallBuilder call, const at::Tensor& output, const at::Tensor& input,
                            const c10d::ReduceOp& op, int index = -1) {
  call.reduce(op).output(output, {"output", index}).input_shares(input, {"input", index});
  return call.build();
}

}  // namespace

WorkPtr ProcessGroupSymm::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kAllReduce);
    call.reduce(opts.reduceOp).in_place(call.checks().only(tensors, "tensors"), {"tensor"});
    return impl_->issue(OpType::ALLREDUCE, "symm:all_reduce", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  return with_torch_errors([&] {
    CallBatch calls;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CallBuilder call = impl_->builder(CollectiveKind::kAllReduce);
      call.reduce(opts.reduceOp).in_place(tensors[i], {"tensors", static_cast<int>(i)});
      calls.push_back(call.build());
    }
    return impl_->issue(OpType::ALLREDUCE_COALESCED, "symm:all_reduce_coalesced", std::move(calls),
                        opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kReduce);
    call.root(opts.rootRank, "dst")
        .reduce(opts.reduceOp)
        .in_place(call.checks().only(tensors, "tensors"), {"tensor"});
    CollectiveCall built = call.build();
    if (opts.rootRank != rank_) built.args.output = nullptr;
    return impl_->issue(OpType::REDUCE, "symm:reduce", std::move(built), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  return with_torch_errors([&] {
    CallBuilder call = impl_->builder(CollectiveKind::kReduceScatter);
    call.reduce(opts.reduceOp)
        .output(call.checks().only(outputs, "outputs"), {"output"})
        .input_list(call.checks().only(inputs, "inputs"), "input_list")
        .own_part("input_list");
    return impl_->issue(OpType::REDUCE_SCATTER, "symm:reduce_scatter", call.build(), opts.timeout,
                        opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  return with_torch_errors([&] {
    return impl_->issue(
        OpType::_REDUCE_SCATTER_BASE, "symm:reduce_scatter_single",
        scatter_from(impl_->builder(CollectiveKind::kReduceScatter), output, input, opts.reduceOp),
        opts.timeout, opts.asyncOp);
  });
}

WorkPtr ProcessGroupSymm::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  return with_torch_errors([&] {
    impl_->builder(CollectiveKind::kReduceScatter)
        .checks()
        .list_size(inputs.size(), outputs.size(), "inputs");
    CallBatch calls;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      calls.push_back(scatter_from(impl_->builder(CollectiveKind::kReduceScatter), outputs[i],
                                   inputs[i], opts.reduceOp, static_cast<int>(i)));
    }
    // torch 2.11 has no operation type for the coalesced form.
    return impl_->issue(OpType::_REDUCE_SCATTER_BASE, "symm:reduce_scatter_single_coalesced",
                        std::move(calls), opts.timeout, opts.asyncOp);
  });
}

}  // namespace symm
