#include <symm/SymmetricTensor.hpp>

#include <c10/util/strides.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/contiguous_view.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/provider_registry.hpp"
#include "symm_mem/c10d/symmetric_memory.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {
namespace {

namespace torch_memory = c10d::symmetric_memory;

at::Tensor allocate_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) {
  const auto allocate = [&](c10::IntArrayRef shape) {
    return torch_memory::empty_strided_p2p(shape, c10::contiguous_strides(shape), dtype, device,
                                           std::nullopt, std::nullopt);
  };
  // At least one element of memory, so that the tensor is known by its address.
  const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  return is_empty ? allocate({1}).narrow(0, 0, 0).view(sizes) : allocate(sizes);
}

std::size_t in_milliseconds(const SymmetricTensor::Timeout& timeout) {
  return timeout ? static_cast<std::size_t>(std::max<std::int64_t>(1, timeout->count())) : 0;
}

}  // namespace

SymmetricTensor SymmetricTensor::empty(c10::IntArrayRef sizes, const c10::TensorOptions& options,
                                       const std::string& group_name) {
  return with_torch_errors([&] {
    at::Tensor tensor;
    allocate_from_provider(options.device(), "SymmetricTensor.empty", [&] {
      const auto dtype = options.dtype().toScalarType();
      tensor = allocate_tensor(sizes, dtype, with_index(options.device()));
    });
    return SymmetricTensor(std::move(tensor), group_name);
  });
}

SymmetricTensor::SymmetricTensor(at::Tensor tensor, std::string group_name)
    : local_(std::move(tensor)),
      group_name_(std::move(group_name)),
      provider_(with_torch_errors([] { return &current_memory_provider(); })) {
  with_torch_errors([&] {
    if (!local_.is_contiguous()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "SymmetricTensor: tensor: expected a contiguous one, got shape ",
                  printed(local_.sizes()), " with strides ", printed(local_.strides()));
    }
    handle_ = rendezvous(local_, group_name_, "SymmetricTensor");
    if (handle_) return;
    throw Error(ErrorCode::kInvalidArgument,
                "SymmetricTensor: tensor: expected one in memory of the provider '", provider(),
                "' (SymmetricTensor.empty, torch_symm.empty, torch_symm.as_symmetric), got shape ",
                printed(local_.sizes()), " in ordinary memory on ", local_.device().str());
  });
}

std::string SymmetricTensor::provider() const { return provider_->name; }

at::Tensor SymmetricTensor::remote(int rank) const {
  check_rank(rank, "remote");
  if (rank == this->rank()) return local_;
  return handle_->get_buffer(rank, local_.sizes(), local_.scalar_type(),
                             offset_bytes() / static_cast<std::int64_t>(local_.itemsize()));
}

at::Tensor SymmetricTensor::signal_pad(int rank) const {
  check_rank(rank, "signal_pad");
  return handle_->get_signal_pad(rank, {});
}

void SymmetricTensor::barrier(int channel, Timeout timeout) const {
  require(*provider_, &MemoryProvider::barrier, "barrier", "SymmetricTensor.barrier");
  handle_->barrier(channel, in_milliseconds(timeout));
}

void SymmetricTensor::put_signal(int rank, int channel, Timeout timeout) const {
  check_rank(rank, "put_signal");
  require(*provider_, &MemoryProvider::signals, "signals", "SymmetricTensor.put_signal");
  handle_->put_signal(rank, channel, in_milliseconds(timeout));
}

void SymmetricTensor::wait_signal(int rank, int channel, Timeout timeout) const {
  check_rank(rank, "wait_signal");
  require(*provider_, &MemoryProvider::signals, "signals", "SymmetricTensor.wait_signal");
  handle_->wait_signal(rank, channel, in_milliseconds(timeout));
}

void* SymmetricTensor::multicast_pointer() const {
  void* const start = handle_->get_multicast_ptr();
  if (start != nullptr) return static_cast<std::byte*>(start) + offset_bytes();
  const std::string reason = why_no_multicast(*handle_);
  throw_torch_error(Error(ErrorCode::kUnsupported,
                          "SymmetricTensor.multicast_pointer: the memory provider '", provider(),
                          "' has made no multicast object for this memory on ",
                          local_.device().str(), reason.empty() ? "" : ": ", reason));
}

at::Tensor SymmetricTensor::contiguous_view() const {
  require(*provider_, &MemoryProvider::views, "contiguous view", "SymmetricTensor.contiguous_view");
  return symm::contiguous_view(local_, group_name_);
}

void SymmetricTensor::check_rank(int rank, const char* caller) const {
  if (rank >= 0 && rank < world_size()) return;
  throw_torch_error(Error(ErrorCode::kInvalidArgument, "SymmetricTensor.", caller,
                          ": rank: expected 0 to ", world_size() - 1, ", got ", rank));
}

// Of the tensor, from the start of its allocation; an empty tensor has no address. A handle is
// that of the start of the tensor's storage, and a provider may have mapped this rank's memory
// twice.
std::int64_t SymmetricTensor::offset_bytes() const {
  if (local_.numel() == 0) return 0;
  return static_cast<std::int64_t>(handle_->get_offset()) +
         local_.storage_offset() * static_cast<std::int64_t>(local_.itemsize());
}

}  // namespace symm
