// What torch.cuda.memory.CUDAPluggableAllocator calls, so that a torch.cuda.MemPool can allocate
// symmetric memory of SYMM whatever provider PyTorch has selected. Found by name in this library.
//
// Where SYMM is selected, torch.distributed._symmetric_memory.get_mem_pool() comes here by itself:
// PyTorch's pool asks the selected allocator.
#include <cstddef>

#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/errors.hpp"

#define SYMM_EXPORT extern "C" __attribute__((visibility("default")))

SYMM_EXPORT void* symm_pool_alloc(std::size_t size, int device, void* /*stream*/) {
  return symm::with_torch_errors([&]() -> void* {
    const c10::Device place(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    return symm::allocate(size, place, std::nullopt)->base();
  });
}

SYMM_EXPORT void symm_pool_free(void* pointer, std::size_t /*size*/, int /*device*/,
                                void* /*stream*/) {
  symm::free_allocation(pointer);
}
