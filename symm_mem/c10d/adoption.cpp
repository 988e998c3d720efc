#include "symm_mem/c10d/adoption.hpp"

#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/segment/segment_offer.hpp"

namespace symm {
namespace {

// Some kernels decide by the local address alone how wide they read at a peer's.
constexpr std::size_t kStartAlignment = kCacheLine;

const std::byte* start_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.storage().data());
}

// The runtime that could find pieces; null for a device that has none or cannot be used.
DeviceRuntime* runtime_of(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage()) return nullptr;
  try {
    return &device_runtime(tensor.device());
  } catch (const Error&) {
    return nullptr;
  }
}

// A device that cannot be asked has none. An error of one rank alone would leave the others
// waiting.
std::optional<PiecedMemory> pieces_behind(DeviceRuntime& runtime, const std::byte* start,
                                          std::size_t bytes) {
  try {
    return runtime.find_pieces(start, bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Adoption::Adoption(const at::Tensor& tensor, std::shared_ptr<Allocation> allocation)
    : storage_(tensor.storage()),
      allocation_(std::move(allocation)),
      offset_(start_of(tensor) - allocation_->base() +
              tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize())) {}

Adoption::Adoption(const at::Tensor& tensor, PiecedMemory memory)
    : Adoption(tensor, std::make_shared<Allocation>(tensor.storage(), std::move(memory))) {}

std::optional<Adoption> Adoption::of(const at::Tensor& tensor) {
  DeviceRuntime* const runtime = runtime_of(tensor);
  if (runtime == nullptr) return std::nullopt;
  const std::size_t bytes = tensor.storage().nbytes();
  if (bytes == 0 || start_of(tensor) == nullptr) return std::nullopt;
  if (const auto known = find_allocation(start_of(tensor))) {
    if (!known->adopted()) return std::nullopt;
    const auto behind = static_cast<std::size_t>(start_of(tensor) - known->base());
    if (behind + bytes <= known->bytes()) {
      const auto found = pieces_behind(*runtime, known->base(), known->bytes());
      if (found && known->is_backed_by(*found)) return Adoption(tensor, known);
      known->retire();
    }
  }
  auto* const start = static_cast<const std::byte*>(tensor.storage().mutable_data());
  if (reinterpret_cast<std::uintptr_t>(start) % kStartAlignment != 0) return std::nullopt;
  auto found = pieces_behind(*runtime, start, bytes);
  if (!found || found->pieces.size() > SegmentOffer::kMaxPieces) return std::nullopt;
  return Adoption(tensor, std::move(*found));
}

std::string Adoption::share(const std::string& group_name) {
  try {
    allocation_->share(group_name);
  } catch (const Error& error) {
    if (breaks_mesh(error.code())) throw;
    return error.what();
  }
  add_adopted(allocation_);
  return "";
}

}  // namespace symm
