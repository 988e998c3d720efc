#include "symm_mem/c10d/symmetric_allocator.hpp"

#include <mutex>

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

}  // namespace

void* SymmetricAllocator::alloc(std::size_t size, int device_idx,
                                const std::optional<std::string>& group_name) {
  return with_torch_errors([&]() -> void* {
    const auto index = static_cast<c10::DeviceIndex>(device_type_ == c10::kCPU ? -1 : device_idx);
    return allocate(size, c10::Device(device_type_, index), group_name)->base();
  });
}

void SymmetricAllocator::free(void* ptr) { free_allocation(ptr); }

std::size_t SymmetricAllocator::get_alloc_size(void* ptr) {
  return with_torch_errors([&] {
    const std::shared_ptr<Allocation> allocation = allocation_on(device_type_, ptr);
    if (!allocation) {
      throw Error(ErrorCode::kInvalidArgument,
                  "get_alloc_size: expected a pointer into symmetric memory of SYMM");
    }
    return allocation->bytes();
  });
}

c10::intrusive_ptr<SymmetricMemory> SymmetricAllocator::rendezvous(
    void* ptr, const std::optional<std::string>& group_name) {
  const std::shared_ptr<Allocation> allocation = allocation_on(device_type_, ptr);
  if (!allocation) return nullptr;
  return with_torch_errors([&] {
    const std::string& group = group_of(*allocation, group_name);
    return blocking_call([&] {
      const auto offset =
          static_cast<std::size_t>(static_cast<std::byte*>(ptr) - allocation->base());
      return allocation->handle(allocation->share(group), offset);
    });
  });
}

bool SymmetricAllocator::has_multicast_support(int device_idx) {
  return with_torch_errors([&] {
    if (device_type_ == c10::kCPU) return false;
    const c10::Device device(device_type_, static_cast<c10::DeviceIndex>(device_idx));
    return multicast_problem(device_runtime(device)).empty();
  });
}

bool SymmetricAllocator::has_allocation(void* ptr) {
  return allocation_on(device_type_, ptr) != nullptr;
}

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

}  // namespace symm
