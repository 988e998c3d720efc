// What stands in for a PyTorch with CUDA, NCCL and NVSHMEM in a process without them: allocators,
// their handles, tensors on a GPU that nobody reads, and what PyTorch tells about its libraries.
#pragma once

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "symm_mem/device/device_library.hpp"

namespace symm::test {

// What the stand-ins of PyTorch's functions return; torch_stand_ins.cpp defines those.
inline std::uint64_t nccl_version = 0;  // major << 32 | minor << 16; 0: built without NCCL
inline bool nvshmem_is_there = false;

inline const c10::Device kGpu(c10::kCUDA, 0);

// A handle of rank 1 of 2; what it points to is not there.
class StandInHandle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  explicit StandInHandle(std::uintptr_t multicast) : multicast_(multicast) {}
  std::vector<void*> get_buffer_ptrs() override { return {nullptr, nullptr}; }
  std::vector<void*> get_signal_pad_ptrs() override { return {nullptr, nullptr}; }
  void** get_buffer_ptrs_dev() override { return nullptr; }
  void** get_signal_pad_ptrs_dev() override { return nullptr; }
  std::size_t get_buffer_size() override { return 1024; }
  std::size_t get_offset() override { return 256; }
  bool has_multicast_support() override { return multicast_ != 0; }
  void* get_multicast_ptr() override { return reinterpret_cast<void*>(multicast_); }
  void barrier(int, std::size_t) override {}
  void put_signal(int, int, std::size_t) override {}
  void wait_signal(int, int, std::size_t) override {}
  int get_rank() override { return 1; }
  int get_world_size() override { return 2; }
  c10::Device get_device() override { return kGpu; }

 private:
  const std::uintptr_t multicast_;
};

// An allocator of PyTorch that allocates nothing.
class StandInAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  explicit StandInAllocator(std::string name) : name_(std::move(name)) {}
  void* alloc(std::size_t, int, const std::optional<std::string>&) override { return nullptr; }
  void free(void*) override {}
  std::size_t get_alloc_size(void*) override { return 0; }
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>&) override {
    if (allocations.count(ptr) == 0) return nullptr;
    return c10::make_intrusive<StandInHandle>(multicast);
  }
  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::kCUDA; }
  std::string name() override { return name_; }
  // From torch 2.12 on this overrides.
  bool has_allocation(void* ptr) { return allocations.count(ptr) != 0; }

  std::set<void*> allocations;
  std::uintptr_t multicast = 0;

 private:
  const std::string name_;
};

using StandInPtr = c10::intrusive_ptr<StandInAllocator>;

// PyTorch offers the allocator under `name`.
inline StandInPtr offer(const std::string& name) {
  auto allocator = c10::make_intrusive<StandInAllocator>(name);
  c10d::symmetric_memory::register_availability(name, allocator);
  return allocator;
}

// As in a PyTorch with CUDA, NCCL 2.29 and NVSHMEM, and the allocators of these names, the first of
// which is selected. symm's own memory of GPUs can be chosen, and is not there. For the rest of the
// process.
inline void give_torch(const std::vector<std::string>& names) {
  static const c10::impl::DeviceGuardImplRegistrar guard(
      c10::kCUDA, new c10::impl::FakeGuardImpl<c10::kCUDA>());
  static const DeviceLibrary library{kDeviceLibraryVersion, DeviceKind::kCuda, nullptr};
  set_device_library(DeviceKind::kCuda, &library);
  nccl_version = std::uint64_t{2} << 32 | 29 << 16;
  nvshmem_is_there = true;
  for (const std::string& name : names) offer(name);
  c10d::symmetric_memory::set_backend(names.front());
}

inline std::string selected_in_torch() {
  return *c10d::symmetric_memory::get_backend(c10::Device(c10::kCUDA));
}

// Of float32 elements of `memory` from `start` on, as if they were on kGpu.
inline at::Tensor on_gpu(float* memory, std::int64_t start, std::int64_t count) {
  return at::for_blob(memory, {count})
      .storage_offset(start)
      .options(at::TensorOptions().dtype(at::kFloat).device(kGpu))
      .target_device(kGpu)
      .make_tensor();
}

}  // namespace symm::test
