// SYMM_NAN_CHECK=1: inputs with NaN are refused before anything is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backend/tensor_checks.hpp"

namespace symm {

class NanCheck {
 public:
  // Of a group that `where` names in messages: `group "0"`. Off unless switched on.
  NanCheck(std::string where, bool on) : where_(std::move(where)), on_(on) {}

  // Throws Error(kInvalidArgument) where `tensor` has NaN, with their number and the first one's
  // place; kUnsupported for a tensor on a GPU in a graph capture. On a GPU the host waits for the
  // current stream.
  void check(const TensorChecks& checks, const at::Tensor& tensor, const Argument& argument) const {
    if (on_) [[unlikely]]
      look(checks, tensor, argument);
  }

 private:
  void look(const TensorChecks& checks, const at::Tensor& tensor, const Argument& argument) const;

  const std::string where_;
  const bool on_;
};

}  // namespace symm
