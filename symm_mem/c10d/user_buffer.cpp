#include "symm_mem/c10d/user_buffer.hpp"

#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/segment/segment_descriptor.hpp"

namespace symm {
namespace {

// Some kernels decide by the local address alone how wide they read at a peer's.
constexpr std::size_t kStartAlignment = kCacheLine;

const std::byte* start_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.storage().data());
}

// The runtime that could find chunks; null for a device that has none or cannot be used.
DeviceRuntime* runtime_of(const at::Tensor& tensor) {
  DeviceRuntime* runtime = nullptr;
  if (tensor.is_cuda() && tensor.layout() == at::kStrided && tensor.has_storage()) {
    try_step([&] { runtime = &device_runtime(tensor.device()); });
  }
  return runtime;
}

// A device that cannot be asked has none. An error of one rank alone would leave the others
// waiting.
std::optional<ChunkedMemory> chunks_behind(DeviceRuntime& runtime, const std::byte* start,
                                           std::size_t bytes) {
  std::optional<ChunkedMemory> found;
  try_step([&] { found = runtime.find_chunks(start, bytes); });
  return found;
}

}  // namespace

UserBuffer::UserBuffer(const at::Tensor& tensor, std::shared_ptr<Allocation> allocation)
    : storage_(tensor.storage()),
      allocation_(std::move(allocation)),
      offset_(start_of(tensor) - allocation_->base() +
              tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize())) {}

UserBuffer::UserBuffer(const at::Tensor& tensor, ChunkedMemory memory)
    : UserBuffer(tensor, std::make_shared<Allocation>(tensor.storage(), std::move(memory))) {}

std::optional<UserBuffer> UserBuffer::of(const at::Tensor& tensor) {
  DeviceRuntime* const runtime = runtime_of(tensor);
  if (runtime == nullptr) return std::nullopt;
  const std::size_t bytes = tensor.storage().nbytes();
  if (bytes == 0 || start_of(tensor) == nullptr) return std::nullopt;
  if (const auto known = find_allocation(start_of(tensor))) {
    if (!known->is_user_buffer()) return std::nullopt;
    const auto behind = static_cast<std::size_t>(start_of(tensor) - known->base());
    if (behind + bytes <= known->bytes()) {
      const auto found = chunks_behind(*runtime, known->base(), known->bytes());
      if (found && known->is_backed_by(*found)) return UserBuffer(tensor, known);
      known->retire();
    }
  }
  auto* const start = static_cast<const std::byte*>(tensor.storage().mutable_data());
  if (reinterpret_cast<std::uintptr_t>(start) % kStartAlignment != 0) return std::nullopt;
  auto found = chunks_behind(*runtime, start, bytes);
  if (!found || found->chunks.size() > SegmentDescriptor::kMaxChunks) return std::nullopt;
  return UserBuffer(tensor, std::move(*found));
}

std::string UserBuffer::share(const std::string& group_name, bool symmetric) {
  try {
    allocation_->share(group_name, symmetric);
  } catch (const Error& error) {
    if (breaks_mesh(error.code())) throw;
    return error.what();
  }
  add_user_buffer(allocation_);
  return "";
}

}  // namespace symm
