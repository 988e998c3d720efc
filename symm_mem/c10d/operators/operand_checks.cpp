#include "symm_mem/c10d/operators/operand_checks.hpp"

#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

std::size_t element_bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

std::size_t extent_bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<std::size_t>(last + 1) * tensor.element_size();
}

void check_contiguous(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous, got a tensor of shape ",
              printed(tensor.sizes()), " and strides ", printed(tensor.strides()));
}

void check_sum(const char* op, const std::string& reduce_op) {
  TORCH_CHECK(reduce_op == "sum", op, ": reduce_op must be 'sum', the only one supported, got '",
              reduce_op, "'");
}

void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& input) {
  TORCH_CHECK(tensor.scalar_type() == input.scalar_type(), op, ": ", name,
              " must have the dtype of input, ", input.scalar_type(), ", got ",
              tensor.scalar_type());
}

void check_same_sizes(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& input) {
  TORCH_CHECK(tensor.sizes() == input.sizes(), op, ": ", name, " must have the shape of input, ",
              printed(input.sizes()), ", got ", printed(tensor.sizes()));
}

void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& input) {
  TORCH_CHECK(tensor.device() == input.device(), op, ": ", name,
              " must be on the device of input, ", input.device().str(), ", got ",
              tensor.device().str());
}

void check_apart(const char* op, const char* name, const at::Tensor& tensor, const char* read_name,
                 const at::Tensor& read) {
  const auto* const first = static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto* const second = static_cast<const std::byte*>(read.const_data_ptr());
  TORCH_CHECK(
      first + element_bytes_of(tensor) <= second || second + element_bytes_of(read) <= first, op,
      ": ", name, " must not overlap ", read_name, ", which the other ranks read meanwhile");
}

}  // namespace symm
