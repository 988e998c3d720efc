// The operations behind torch_symm.ccl.
#include <string>
#include <utility>

#include "backend/configured_call.hpp"
#include "backend/process_group_impl.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

namespace {

struct Names {
  OpType type;
  const char* title;
};

Names names_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kReduce:
      return {OpType::REDUCE, "symm:reduce"};
    case CollectiveKind::kBroadcast:
      return {OpType::BROADCAST, "symm:broadcast"};
    case CollectiveKind::kAllGather:
      return {OpType::_ALLGATHER_BASE, "symm:all_gather_single"};
    case CollectiveKind::kReduceScatter:
      return {OpType::_REDUCE_SCATTER_BASE, "symm:reduce_scatter_single"};
    case CollectiveKind::kAllToAll:
      return {OpType::ALLTOALL_BASE, "symm:all_to_all_single"};
    default:
      return {OpType::ALLREDUCE, "symm:all_reduce"};
  }
}

PlanTarget target_of(at::Device device) {
  return device.is_cpu() ? PlanTarget::kHost : PlanTarget::kGpu;
}

}  // namespace

WorkPtr ProcessGroupSymm::Impl::run_configured(const ConfiguredCall& given, bool async_op) {
  return with_torch_errors([&] {
    engine_->check_usable();
    CollectiveCall call = build_configured_call(builder(given.kind), given);
    const PlanTarget target = target_of(call.device);
    const Plan plan = engine_->communicator().plan(call.args, given.request, target);
    call.request = given.request;
    if (given.input_stage && peers_read_input(call, rank_, plan.algorithm)) {
      stage_input(call, *given.input_stage);
    }
    if (given.output_stage) stage_output(call, *given.output_stage);
    const Names names = names_of(given.kind);
    return issue(names.type, names.title, std::move(call), Milliseconds(0), async_op);
  });
}

bool ProcessGroupSymm::Impl::device_knows(const at::Tensor& tensor) const {
  const DeviceGroup* group = engine_->communicator().device_group_if_made();
  return group != nullptr && group->knows(tensor.const_data_ptr(), tensor.nbytes());
}

WorkPtr ProcessGroupSymm::Impl::device_barrier(std::optional<at::Device> device) {
  return with_torch_errors([&] {
    const int own = gpu();
    const at::Device place = device     ? *device
                             : own >= 0 ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(own))
                                        : at::Device(at::kCPU);
    CollectiveCall call;
    if (place.is_cpu()) {
      call = barrier_call({});
    } else {
      call = builder(CollectiveKind::kBarrier).build();
      call.device = place;
    }
    return issue(OpType::BARRIER, "symm:device_barrier", std::move(call), Milliseconds(0), false);
  });
}

}  // namespace symm
