// Owners of GPU memory and of the addresses it is seen at. gpu_runtime.cpp hands them out.
//
// NOTE [Unmapping and spinning kernels]
// Unmapping may wait for all kernels of the device, and a kernel of this group may be waiting for a
// peer that waits for this rank. So memory is made, cleared and mapped without unmapping anything:
// the mapping in which allocate() clears new memory is kept and becomes the first Mapping of it.
//
// Every owner frees what it holds when it goes, with errors ignored: at the end of a process the
// driver may be gone already. In a forked child they free nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/device/gpu_device.hpp"

namespace symm {

// Runs `release` in the device's context, or not at all where that cannot be entered: in a forked
// child, and once the driver has shut down, with which all that it held is gone.
template <typename Release>
void release_quietly(const GpuDevice& device, Release&& release) noexcept {
  try {
    const GpuColdScope scope(device);
    release(device.driver());
  } catch (const Error&) {
    // Nothing is left to release.
  }
}

// Addresses without memory.
class GpuRange final : public AddressRange {
 public:
  // `bytes`: a multiple of `alignment`, above 0. Throws Error(kSystem).
  GpuRange(const GpuDevice& device, std::size_t bytes, std::size_t alignment);
  ~GpuRange() override;
  GpuRange(const GpuRange&) = delete;
  GpuRange& operator=(const GpuRange&) = delete;

  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  const GpuDevice& device_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
};

// Memory made visible at a place of `range` for as long as this lives, for reading and writing by
// `device`.
class GpuMapping final : public Mapping {
 public:
  // Throws Error(kSystem) that names the GPU.
  GpuMapping(const GpuDevice& device, gpuMemHandle_t memory, std::size_t bytes,
             std::shared_ptr<AddressRange> range, std::size_t offset, const std::string& whose);
  ~GpuMapping() override;
  GpuMapping(const GpuMapping&) = delete;
  GpuMapping& operator=(const GpuMapping&) = delete;

  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return bytes_; }
  std::shared_ptr<AddressRange> range() const override { return range_; }
  // Keeps `memory`, which it shows, alive from now on.
  void hold(std::shared_ptr<PhysicalMemory> memory) { memory_ = std::move(memory); }

 private:
  void unmap() noexcept;

  const GpuDevice& device_;
  std::shared_ptr<PhysicalMemory> memory_;  // null until hold()
  std::shared_ptr<AddressRange> range_;
  std::byte* base_;
  std::size_t bytes_;
};

class GpuMemory final : public PhysicalMemory {
 public:
  // Takes `handle` over. `kinds`: of the handles that it can be exported by. `whose`: "memory" or
  // "a peer's memory", for messages.
  GpuMemory(const GpuDevice& device, gpuMemHandle_t handle, std::size_t bytes, HandleKinds kinds,
            std::string whose)
      : device_(device), handle_(handle), bytes_(bytes), kinds_(kinds), whose_(std::move(whose)) {}
  ~GpuMemory() override;

  std::size_t bytes() const override { return bytes_; }
  gpuMemHandle_t handle() const { return handle_; }
  HandleKinds kinds() const { return kinds_; }

  // The caller says what keeps the memory alive.
  std::unique_ptr<GpuMapping> map_at(std::shared_ptr<AddressRange> range, std::size_t offset) const;

  // Keeps a mapping for the first one who wants to map the memory.
  void keep(std::unique_ptr<GpuMapping> mapping);
  std::unique_ptr<GpuMapping> take_kept();

 private:
  const GpuDevice& device_;
  gpuMemHandle_t handle_;
  std::size_t bytes_;
  HandleKinds kinds_;
  std::string whose_;
  std::mutex mutex_;
  std::unique_ptr<GpuMapping> kept_;
};

}  // namespace symm
