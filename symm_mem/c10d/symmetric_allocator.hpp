// What PyTorch's symmetric-memory API allocates from under the name "SYMM".
//
// One object serves host memory, one GPU memory. register_symmetric_memory() makes the one for the
// host PyTorch's allocator of symmetric CPU tensors, which PyTorch itself has not, and the one for
// GPUs a choice of torch.distributed._symmetric_memory.set_backend().
#pragma once

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstddef>
#include <optional>
#include <string>

namespace symm {

// The name for set_backend().
inline constexpr char kSymmetricMemoryName[] = "SYMM";

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  explicit SymmetricAllocator(c10::DeviceType device_type) : device_type_(device_type) {}

  // Local; zero-filled. size == 0 is legal. A device index below 0 means the current device. Not
  // under graph capture.
  void* alloc(std::size_t size, int device_idx,
              const std::optional<std::string>& group_name) override;

  // `ptr` as alloc() returned it; other pointers are ignored. The memory goes with the last handle
  // of it; that of a GPU waits for the device first.
  void free(void* ptr) override;

  // Bytes as asked for. ValueError for a pointer that is not in an allocation of ours.
  std::size_t get_alloc_size(void* ptr) override;

  // Collective over the group: that of the name, else, where it is none or "", the one that was
  // given to alloc(). Blocks without Python's interpreter lock. `ptr` may point into the
  // allocation; nullptr for one that is not in an allocation of ours.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override;

  // Whether the device could have multicast pointers; a group may have none all the same.
  bool has_multicast_support(int device_idx) override;

  c10::DeviceType supported_device_type() override { return device_type_; }
  std::string name() override { return kSymmetricMemoryName; }

  // Whether `ptr` points into an allocation of ours. From torch 2.12 on this overrides.
  // NOLINTNEXTLINE(modernize-use-override)
  bool has_allocation(void* ptr);

 private:
  const c10::DeviceType device_type_;
};

// Idempotent, local, touches no device.
void register_symmetric_memory();

}  // namespace symm
