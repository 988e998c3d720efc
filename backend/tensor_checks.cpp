#include "backend/tensor_checks.hpp"

#include <bit>
#include <optional>
#include <sstream>

#include "backend/streams/device_streams.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

std::string layout_text(at::Layout layout) {
  std::ostringstream text;
  text << layout;
  return text.str();
}

// A dtype without arithmetic here travels as another one of its size.
std::optional<Dtype> carrier_of(std::size_t bytes) {
  constexpr Dtype kCarriers[] = {Dtype::kUInt8, Dtype::kInt16, Dtype::kInt32, Dtype::kInt64,
                                 Dtype::kComplex128};
  if (!std::has_single_bit(bytes) || bytes > 16) return std::nullopt;
  return kCarriers[std::countr_zero(bytes)];
}

std::string dtype_text(at::ScalarType type) {
  const std::optional<Dtype> dtype = dtype_of(type);
  return dtype ? std::string(dtype_name(*dtype)) : std::string(c10::toString(type));
}

bool is_lazy_view(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

}  // namespace

std::string Argument::text() const {
  return index == kNotInList ? std::string(name)
                             : std::string(name) + "[" + std::to_string(index) + "]";
}

void TensorChecks::fail(ErrorCode code, const Argument& argument,
                        const std::string& problem) const {
  const std::string global =
      global_rank_ == rank_ ? "" : text_of(", global rank ", global_rank_, ",");
  throw Error(code, operation_, ": ", argument.text(), ": ", problem, " (group rank ", rank_,
              global, " of ", world_size_, ")");
}

void TensorChecks::readable(const at::Tensor& tensor, const Argument& argument) const {
  if (!tensor.defined()) {
    fail(ErrorCode::kInvalidArgument, argument, "expected a tensor, got an undefined one");
  }
  if (tensor.layout() != at::kStrided) [[unlikely]] {
    fail(ErrorCode::kUnsupported, argument,
         "expected a dense tensor (layout torch.strided), got layout " +
             layout_text(tensor.layout()) + "; pass tensor.to_dense()");
  }
  if (tensor.device().is_cpu() || tensor.device().is_cuda()) [[likely]]
    return;
  fail(ErrorCode::kUnsupported, argument,
       "expected a tensor on cpu or cuda, got one on " + tensor.device().str());
}

void TensorChecks::group_device(const at::Tensor& tensor, const Argument& argument, int gpu) const {
  const at::Device device = tensor.device();
  if (!device.is_cuda() || device.index() == gpu) [[likely]]
    return;
  if (gpu >= 0) {
    fail(ErrorCode::kInvalidArgument, argument,
         "expected a tensor on " + at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu)).str() +
             ", the one GPU that this group uses on this rank, or on cpu, got one on " +
             device.str());
  }
  try {
    gpu_runtime(device);
  } catch (const Error& problem) {
    fail(problem.code(), argument,
         "expected a tensor on a device that can be used, got one on " + device.str() + ": " +
             problem.what());
  }
}

void TensorChecks::same_device(const at::Tensor& tensor, const Argument& argument,
                               at::Device expected) const {
  if (tensor.device() == expected) [[likely]]
    return;
  fail(ErrorCode::kInvalidArgument, argument,
       "expected a tensor on " + expected.str() + " as the other tensors of the call, got one on " +
           tensor.device().str());
}

void TensorChecks::usable(const at::Tensor& tensor, const Argument& argument) const {
  readable(tensor, argument);
  if (is_lazy_view(tensor)) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, argument,
         "expected plain memory to write to, got a lazily conjugated or negated view; pass "
         "tensor.resolve_conj().resolve_neg()");
  }
}

void TensorChecks::writable(const at::Tensor& tensor, const Argument& argument) const {
  usable(tensor, argument);
  if (!tensor.is_contiguous()) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, argument,
         "expected a contiguous tensor, got size " + printed(tensor.sizes()) + " with strides " +
             printed(tensor.strides()) + "; pass a contiguous one and copy from it");
  }
}

Dtype TensorChecks::arithmetic_dtype(const at::Tensor& tensor, const Argument& argument) const {
  const std::optional<Dtype> dtype = dtype_of(tensor.scalar_type());
  if (!dtype) [[unlikely]] {
    fail(ErrorCode::kUnsupported, argument,
         "no reduction is defined for dtype " + dtype_text(tensor.scalar_type()) +
             "; convert the tensor to one that has arithmetic");
  }
  return *dtype;
}

Dtype TensorChecks::movable_dtype(const at::Tensor& tensor, const Argument& argument) const {
  std::optional<Dtype> dtype = dtype_of(tensor.scalar_type());
  if (!dtype && !tensor.is_quantized()) dtype = carrier_of(tensor.element_size());
  if (!dtype) [[unlikely]] {
    fail(ErrorCode::kUnsupported, argument,
         "dtype " + dtype_text(tensor.scalar_type()) +
             " cannot be sent; convert the tensor, or send what it is made of");
  }
  return *dtype;
}

void TensorChecks::same_dtype(const at::Tensor& tensor, const Argument& argument,
                              at::ScalarType expected) const {
  if (tensor.scalar_type() == expected) [[likely]]
    return;
  fail(ErrorCode::kInvalidType, argument,
       "expected dtype " + dtype_text(expected) + " as in the other tensors of the call, got " +
           dtype_text(tensor.scalar_type()));
}

void TensorChecks::rank_in_range(std::int64_t rank, const char* name) const {
  if (rank >= 0 && rank < world_size_) [[likely]]
    return;
  fail(ErrorCode::kInvalidArgument, {name},
       "expected a rank of the group, 0 to " + std::to_string(world_size_ - 1) + ", got " +
           std::to_string(rank));
}

void TensorChecks::list_size(std::size_t size, std::size_t expected, const char* name) const {
  if (size == expected) [[likely]]
    return;
  fail(ErrorCode::kInvalidArgument, {name},
       "expected " + std::to_string(expected) + (expected == 1 ? " entry" : " entries") + ", got " +
           std::to_string(size));
}

void TensorChecks::element_count(std::size_t count, std::size_t expected,
                                 const Argument& argument) const {
  if (count == expected) [[likely]]
    return;
  fail(ErrorCode::kInvalidArgument, argument,
       "expected " + std::to_string(expected) + " elements, got " + std::to_string(count));
}

ReduceOp TensorChecks::reduce_op(const c10d::ReduceOp& op, double& factor) const {
  static_assert(static_cast<int>(c10d::ReduceOp::SUM) == static_cast<int>(ReduceOp::kSum) &&
                static_cast<int>(c10d::ReduceOp::BXOR) == static_cast<int>(ReduceOp::kBxor));
  if (op.op_ <= c10d::ReduceOp::BXOR) return static_cast<ReduceOp>(op.op_);
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    fail(ErrorCode::kInvalidArgument, {"op"},
         "expected a reduction operator, got the value " + std::to_string(op.op_));
  }
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (!supplement) {
    fail(ErrorCode::kInvalidArgument, {"op"},
         "expected PREMUL_SUM with its factor, got none; make it by _make_nccl_premul_sum(factor)");
  }
  const at::Tensor& tensor = supplement->tensor_factor;
  if (tensor.defined()) readable(tensor, {"op"});
  if (tensor.defined() && tensor.is_cuda() && is_captured(tensor.device())) {
    fail(ErrorCode::kUnsupported, {"op"},
         "the factor of PREMUL_SUM is a tensor on " + tensor.device().str() +
             ", which cannot be read while a graph is captured; pass it as a number");
  }
  factor = tensor.defined() ? tensor.item().toDouble() : supplement->double_factor;
  return ReduceOp::kPreMulSum;
}

std::uint32_t layout_hash(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return 0;
  std::uint64_t hash = 1469598103934665603ull;  // FNV-1a
  const auto add = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211ull;
  };
  for (const std::int64_t size : tensor.sizes()) add(size);
  for (const std::int64_t stride : tensor.strides()) add(stride);
  const auto folded = static_cast<std::uint32_t>(hash ^ (hash >> 32));
  return folded == 0 ? 1 : folded;
}

}  // namespace symm
