#include "backend/nan_check.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>

#include <cstdint>

#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

// "[1, 5]": the indices of element `position` of a contiguous tensor.
std::string place_of(std::int64_t position, at::IntArrayRef sizes) {
  std::vector<std::int64_t> indices(sizes.size());
  for (std::size_t dimension = sizes.size(); dimension-- > 0;) {
    indices[dimension] = position % sizes[dimension];
    position /= sizes[dimension];
  }
  return printed(indices);
}

}  // namespace

void NanCheck::look(const TensorChecks& checks, const at::Tensor& tensor,
                    const Argument& argument) const {
  const at::ScalarType type = tensor.scalar_type();
  if (tensor.numel() == 0 || !(at::isFloatingType(type) || at::isComplexType(type))) return;
  if (tensor.is_cuda() && is_captured(tensor.device())) {
    checks.fail(ErrorCode::kUnsupported, argument,
                "SYMM_NAN_CHECK=1 reads it on the host, which cannot wait for a stream that is "
                "captured into a graph; unset SYMM_NAN_CHECK, or run without the graph");
  }
  const at::NoGradGuard no_grad;
  // Types of one byte have no arithmetic of their own.
  const at::Tensor found =
      at::isnan(tensor.element_size() == 1 ? tensor.to(at::kFloat) : tensor).flatten();
  if (!found.any().item<bool>()) [[likely]]
    return;
  const auto first = found.nonzero()[0].item<std::int64_t>();
  const auto count = found.sum().item<std::int64_t>();
  checks.fail(ErrorCode::kInvalidArgument, argument,
              text_of("expected no NaN in what goes to ", where_, " (SYMM_NAN_CHECK=1), got ",
                      count, " in ", tensor.numel(), " elements, the first at ",
                      place_of(first, tensor.sizes()), "; look at what computed it"));
}

}  // namespace symm
