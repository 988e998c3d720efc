#include "symm_mem/c10d/symmetric_allocator.hpp"

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/symmetric_memory.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/segment/multicast_team.hpp"

namespace symm {
namespace {

using c10d::symmetric_memory::SymmetricMemory;

// `ptr`'s allocation where that is on a device of this kind.
std::shared_ptr<Allocation> allocation_on(c10::DeviceType type, const void* ptr) {
  std::shared_ptr<Allocation> found = find_allocation(ptr);
  return found && found->device().type() == type ? found : nullptr;
}

const std::string& group_of(const Allocation& allocation, const std::optional<std::string>& given) {
  if (given && !given->empty()) return *given;
  const std::optional<std::string>& remembered = allocation.group_name();
  if (remembered && !remembered->empty()) return *remembered;
  throw Error(ErrorCode::kInvalidArgument,
              "rendezvous: expected the name of a group, got none, and none was given when the "
              "memory was allocated");
}

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  explicit SymmetricAllocator(c10::DeviceType device_type) : device_type_(device_type) {}

  // Local; zero-filled. size == 0 is legal. A device index below 0 means the current device. Not
  // under graph capture.
  void* alloc(std::size_t size, int device_idx,
              const std::optional<std::string>& group_name) override {
    return with_torch_errors([&]() -> void* {
      const auto index = static_cast<c10::DeviceIndex>(device_type_ == c10::kCPU ? -1 : device_idx);
      return allocate(size, c10::Device(device_type_, index), group_name)->base();
    });
  }

  // `ptr` as alloc() returned it; other pointers are ignored. The memory goes with the last handle
  // of it; that of a GPU waits for the device first.
  void free(void* ptr) override { free_allocation(ptr); }

  // Bytes as asked for. ValueError for a pointer that is not in an allocation of ours.
  std::size_t get_alloc_size(void* ptr) override {
    return with_torch_errors([&] {
      const std::shared_ptr<Allocation> allocation = allocation_on(device_type_, ptr);
      if (!allocation) {
        throw Error(ErrorCode::kInvalidArgument,
                    "get_alloc_size: expected a pointer into symmetric memory of SYMM");
      }
      return allocation->bytes();
    });
  }

  // The first one for a group is collective over it and blocks, without Python's interpreter lock;
  // the others are local, also while a graph is captured, and throw where the group has failed. The
  // group is that of the name, else, where it is none or "", the one that was given to alloc().
  // `ptr` may point into the allocation; nullptr for one that is not in an allocation of ours.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override {
    const std::shared_ptr<Allocation> allocation = allocation_on(device_type_, ptr);
    if (!allocation) return nullptr;
    return with_torch_errors([&] {
      const std::string& group = group_of(*allocation, group_name);
      const auto offset =
          static_cast<std::size_t>(static_cast<std::byte*>(ptr) - allocation->base());
      if (const auto shared = allocation->shared_with(group_by_name(group).get())) {
        shared->link().peers().check_usable();
        return allocation->handle(shared, offset);
      }
      return blocking_call([&] { return allocation->handle(allocation->share(group), offset); });
    });
  }

  // Whether the device could have multicast pointers; a group may have none all the same.
  bool has_multicast_support(int device_idx) override {
    return with_torch_errors([&] {
      if (device_type_ == c10::kCPU) return false;
      const c10::Device device(device_type_, static_cast<c10::DeviceIndex>(device_idx));
      return multicast_problem(device_runtime(device)).empty();
    });
  }

  c10::DeviceType supported_device_type() override { return device_type_; }
  std::string name() override { return kSymmetricMemoryName; }

  // Whether `ptr` points into an allocation of ours. From torch 2.12 on this overrides.
  // NOLINTNEXTLINE(modernize-use-override)
  bool has_allocation(void* ptr) { return allocation_on(device_type_, ptr) != nullptr; }

 private:
  const c10::DeviceType device_type_;
};

}  // namespace

void register_symmetric_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    using c10d::symmetric_memory::register_allocator;
    using c10d::symmetric_memory::register_availability;
    register_availability(kSymmetricMemoryName,
                          c10::make_intrusive<SymmetricAllocator>(c10::DeviceType::CUDA));
    register_allocator(c10::DeviceType::CPU,
                       c10::make_intrusive<SymmetricAllocator>(c10::DeviceType::CPU));
  });
}

c10::intrusive_ptr<SymmetricMemory> own_handle(const at::Tensor& tensor,
                                               const std::string& group_name) {
  const auto allocator = c10::make_intrusive<SymmetricAllocator>(tensor.device().type());
  return allocator->rendezvous(tensor.data_ptr(), group_name);
}

}  // namespace symm
