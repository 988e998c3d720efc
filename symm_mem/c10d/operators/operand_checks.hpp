// What the operators of symm_mem ask of their tensors. Each check throws c10::Error, which in
// Python is the RuntimeError of PyTorch's own kernels, and names the operator, the argument `name`,
// what is expected and what came. Local.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

namespace symm {

// Of the elements; a tensor with gaps covers more.
std::size_t element_bytes_of(const at::Tensor& tensor);
// From the first element to the end of the last one.
std::size_t extent_bytes_of(const at::Tensor& tensor);

void check_contiguous(const char* op, const char* name, const at::Tensor& tensor);
void check_sum(const char* op, const std::string& reduce_op);
void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& input);
void check_same_sizes(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& input);
void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& input);
// Peers read `read`, which the caller calls `read_name`, while `tensor` is written. Both
// contiguous.
void check_apart(const char* op, const char* name, const at::Tensor& tensor, const char* read_name,
                 const at::Tensor& read);

}  // namespace symm
