#include "symm_mem/c10d/operators/peer_buffers.hpp"

#include <c10/util/Exception.h>

#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/operators/operand_checks.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

constexpr int kBarrierChannel = 0;
constexpr std::size_t kNoTimeLimit = 0;

}  // namespace

PeerBuffers::PeerBuffers(const char* op, const char* name, const at::Tensor& tensor,
                         const std::string& group_name)
    : memory_(c10d::symmetric_memory::rendezvous(tensor, group_name)),
      element_bytes_(tensor.element_size()) {
  // Numbers in messages: see NOTE [Numbers and iostreams] in kernels/core/decimal.hpp.
  using std::to_string;
  TORCH_CHECK(memory_ != nullptr, op, ": ", name,
              " must be in symmetric memory (torch.distributed._symmetric_memory.empty), "
              "got an ordinary tensor of shape ",
              printed(tensor.sizes()));
  bases_ = memory_->get_buffer_ptrs();
  if (tensor.numel() == 0) return;
  const auto* const base = static_cast<const std::byte*>(bases_[static_cast<std::size_t>(rank())]);
  const std::ptrdiff_t offset = static_cast<const std::byte*>(tensor.const_data_ptr()) - base;
  const auto size = static_cast<std::ptrdiff_t>(memory_->get_buffer_size());
  const auto extent = static_cast<std::ptrdiff_t>(extent_bytes_of(tensor));
  TORCH_CHECK(offset >= 0 && offset + extent <= size, op, ": ", name,
              " must lie within its allocation of ", to_string(size), " bytes, got ",
              to_string(extent), " bytes at byte ", to_string(offset));
  for (void*& address : bases_) address = static_cast<std::byte*>(address) + offset;
}

std::vector<std::byte*> PeerBuffers::addresses() const {
  std::vector<std::byte*> addresses;
  for (int rank = 0; rank < world_size(); ++rank) addresses.push_back(at(rank, 0));
  return addresses;
}

void PeerBuffers::barrier() const { memory_->barrier(kBarrierChannel, kNoTimeLimit); }

void PeerBuffers::launch(const GpuLaunch& launch) const {
  launch_with_signals(*memory_, kBarrierChannel, launch);
}

const ReduceKernels& kernels_for(Dtype dtype, ReduceOp op) {
  return with_torch_errors(
      [&]() -> const ReduceKernels& { return reduce_kernels(dtype, op, selected_isa()); });
}

void RankSum::operator()(void* result, std::size_t first, std::size_t count) {
  const int size = buffers_.world_size();
  for (int rank = 0; rank < size; ++rank) {
    sources_[static_cast<std::size_t>(rank)] = buffers_.at(rank, first);
  }
  kernels_.reduce(result, sources_.data(), size, nullptr, size, count);
}

}  // namespace symm
