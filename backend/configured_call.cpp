#include "backend/configured_call.hpp"

#include <string>
#include <utility>

#include "backend/engine/group/call_record.hpp"
#include "backend/process_group_impl.hpp"
#include "kernels/plan/placement.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

using WorkPtr = ProcessGroupSymm::WorkPtr;

namespace {

const at::Tensor& given_tensor(const TensorChecks& checks, const std::optional<at::Tensor>& tensor,
                               const char* name) {
  if (!tensor) checks.fail(ErrorCode::kInvalidArgument, {name}, "expected a tensor, got None");
  return *tensor;
}

// Where the bytes of `tensor` go in a stage, as a tensor of its dtype.
at::Tensor place_in(const at::Tensor& stage, const at::Tensor& tensor, const char* name) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (stage.scalar_type() != at::kByte || stage.device() != tensor.device() ||
      !stage.is_contiguous() || stage.numel() < bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("workspace: expected ") + std::to_string(bytes) + " bytes for the " +
                    name + " on " + tensor.device().str() + ", got " +
                    std::to_string(stage.nbytes()) + " on " + stage.device().str());
  }
  return stage.flatten().narrow(0, 0, bytes).view(tensor.scalar_type()).view(tensor.sizes());
}

void move_parts(std::vector<Part>& parts, const void* from, void* to) {
  for (Part& part : parts) {
    const auto offset = static_cast<std::byte*>(part.data) - static_cast<const std::byte*>(from);
    if (part.count > 0) part.data = static_cast<std::byte*>(to) + offset;
  }
}

// Fills in the checked call, without its plan and stages. Throws as CallBuilder does.
void build_configured_call(CallBuilder builder, const ConfiguredCall& given) {
  const TensorChecks& checks = builder.checks();
  const auto input = [&]() -> const at::Tensor& {
    return given_tensor(checks, given.input, "input");
  };
  const auto output = [&]() -> const at::Tensor& {
    return given_tensor(checks, given.output, "output");
  };
  const auto same_shape = [&] {
    if (input().sizes() == output().sizes()) return;
    checks.fail(ErrorCode::kInvalidArgument, {"output"},
                "expected the shape of input, " + printed(input().sizes()) + ", got " +
                    printed(output().sizes()));
  };
  switch (given.kind) {
    case CollectiveKind::kAllReduce:
      builder.reduce(given.op).input(input(), {"input"}).output(output(), {"output"});
      same_shape();
      break;
    case CollectiveKind::kReduce:
      builder.root(given.root, "dst").reduce(given.op).input(input(), {"input"});
      if (given.root != checks.rank()) break;
      builder.output(output(), {"output"});
      same_shape();
      break;
    case CollectiveKind::kBroadcast:
      builder.root(given.root, "src").output(output(), {"output"});
      if (given.root != checks.rank()) break;
      builder.input(input(), {"input"});
      same_shape();
      break;
    case CollectiveKind::kAllGather:
      builder.input(input(), {"input"}).output_shares(output(), {"output"});
      break;
    case CollectiveKind::kReduceScatter:
      builder.reduce(given.op).output(output(), {"output"}).input_shares(input(), {"input"});
      break;
    case CollectiveKind::kAllToAll:
      builder.input_rows(input(), given.input_splits, "input", "input_split_sizes")
          .output_rows(output(), given.output_splits, "output", "output_split_sizes");
      break;
    default:
      throw Error(ErrorCode::kUnsupported,
                  std::string(collective_name(given.kind)) + " cannot be configured");
  }
  builder.finish();
}

// Lets the call read its one input from `stage`, to which it is copied before the call begins.
// Throws Error(kInvalidArgument) where it does not fit.
void stage_input(CollectiveCall& call, const at::Tensor& stage) {
  const at::Tensor source = call.inputs.back();
  const at::Tensor place = place_in(stage, source, "input");
  if (call.args.input != nullptr) call.args.input = place.const_data_ptr();
  move_parts(call.input_parts, source.const_data_ptr(), place.mutable_data_ptr());
  call.copies_before.push_back({place, source});
  call.inputs.push_back(place);
}

// Lets the call write its one output to `stage`, from which it is copied when the call has ended.
void stage_output(CollectiveCall& call, const at::Tensor& stage) {
  const at::Tensor& target = call.outputs.back();
  const at::Tensor place = place_in(stage, target, "output");
  if (call.args.output != nullptr) call.args.output = place.mutable_data_ptr();
  move_parts(call.output_parts, target.const_data_ptr(), place.mutable_data_ptr());
  call.copies_after.push_back({target, place});
  call.inputs.push_back(place);
}

// Whether peers of this rank would read the input of `call` by `algorithm`, if that were in a
// segment and nothing were written there.
bool peers_read_input(const CollectiveCall& call, int rank, Algorithm algorithm,
                      PlanTarget target) {
  if (call.inputs.empty()) return false;
  switch (remote_access(call.args.kind, algorithm, target)) {
    case RemoteAccess::kNeedsInput:
    case RemoteAccess::kNeedsBoth:
      return true;
    case RemoteAccess::kReadsInput:
    case RemoteAccess::kReadsInputApart: {
      if (call.args.kind == CollectiveKind::kAllToAll) return true;  // share by share
      CollectiveArgs apart = call.args;  // as it will be once the input is in a stage
      apart.output = nullptr;
      return input_array(apart, rank, algorithm, target).data != nullptr;
    }
    default:
      return false;
  }
}

}  // namespace

WorkPtr ProcessGroupSymm::Impl::run_configured(const ConfiguredCall& given, bool async_op) {
  return with_torch_errors([&] {
    engine_->check_usable();
    CallBatch calls;
    calls.resize(1);
    CollectiveCall& call = calls.front();
    build_configured_call(builder(call, given.kind), given);
    if (hosts_) {
      if (!given.request.empty()) check_one_host("a collective with a plan of its own");
      if (given.input_stage || given.output_stage) check_one_host("a workspace");
      return issue(operation_of(given.kind), std::move(calls), Milliseconds(0), async_op);
    }
    const PlanTarget target = call.device.is_cpu() ? PlanTarget::kHost : PlanTarget::kGpu;
    // Which of the two wires the group has is known only once it has used its GPUs.
    bool reads_input = false;
    for (const WireKind wire : {WireKind::kLL, WireKind::kLine}) {
      const Plan plan = engine_->communicator().plan(call.args, given.request, target, wire);
      reads_input = reads_input || peers_read_input(call, rank_, plan.algorithm, target);
    }
    call.request = given.request;
    if (given.input_stage && reads_input) {
      stage_input(call, *given.input_stage);
    }
    if (given.output_stage) stage_output(call, *given.output_stage);
    return issue(operation_of(given.kind), std::move(calls), Milliseconds(0), async_op);
  });
}

void ProcessGroupSymm::Impl::all_reduce_rms_norm(const NormedSum& given) {
  return with_torch_errors([&] {
    engine_->check_usable();
    CallBatch calls;
    calls.resize(1);
    CallBuilder call = builder(calls.front(), CollectiveKind::kAllReduce);
    call.reduce(c10d::ReduceOp::SUM).input(given.x, {"x"}).output(given.total, {"total"});
    const auto check = [&](const at::Tensor& tensor, const char* name, std::int64_t count) {
      call.checks().same_device(tensor, {name}, given.x.device());
      call.checks().same_dtype(tensor, {name}, given.x.scalar_type());
      call.checks().element_count(static_cast<std::size_t>(tensor.numel()),
                                  static_cast<std::size_t>(count), {name});
      call.checks().writable(tensor, {name});
    };
    check(given.normed, "normed", given.x.numel());
    check(given.weight, "weight", given.x.dim() == 0 ? 1 : given.x.size(-1));
    if (given.residual) check(*given.residual, "residual", given.x.numel());
    if (given.x.device().is_cpu() || hosts_) {
      call.checks().fail(ErrorCode::kUnsupported, {"x"},
                         "expected a tensor on a GPU, in a group of one host");
    }
    call.finish();
    calls.front().args.norm = {
        .columns = static_cast<std::size_t>(given.weight.numel()),
        .eps = given.eps,
        .weight = given.weight.const_data_ptr(),
        .residual = given.residual ? given.residual->const_data_ptr() : nullptr,
        .result = given.normed.mutable_data_ptr()};
    issue({c10d::OpType::ALLREDUCE, "symm:all_reduce_rms_norm"}, std::move(calls), Milliseconds(0),
          false);
  });
}

bool ProcessGroupSymm::Impl::device_knows(const at::Tensor& tensor) const {
  const DeviceGroup* group = engine_->communicator().device_group_if_made();
  return group != nullptr && group->knows(tensor.const_data_ptr(), tensor.nbytes());
}

void ProcessGroupSymm::Impl::device_barrier(std::optional<at::Device> device, std::uint32_t alike) {
  return with_torch_errors([&] {
    const int own = gpu();
    const at::Device place = device     ? *device
                             : own >= 0 ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(own))
                                        : at::Device(at::kCPU);
    CallBatch calls;
    calls.resize(1);
    if (place.is_cpu()) {
      calls = barrier_call({});
    } else {
      builder(calls.front(), CollectiveKind::kBarrier).finish();
      calls.front().device = place;
      calls.front().args.layout = alike;
    }
    issue({c10d::OpType::BARRIER, "symm:device_barrier"}, std::move(calls), Milliseconds(0), false);
  });
}

}  // namespace symm
