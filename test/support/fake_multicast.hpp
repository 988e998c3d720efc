// Multicast objects of a fake GPU: an address, behind which there is nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/device/multicast.hpp"
#include "symm_mem/device/multicast_object.hpp"

namespace symm::test {

class FakeMulticastObject final : public MulticastObject {
 public:
  FakeMulticastObject(std::shared_ptr<PhysicalMemory> identity, std::size_t bytes)
      : identity_(std::move(identity)), bytes_(bytes) {}

  MemoryHandle export_handle(HandleKind kind) override {
    return host_runtime().export_memory(*identity_, kind);
  }
  void add_device() override {}
  void bind(std::shared_ptr<PhysicalMemory> memory) override { memory_ = std::move(memory); }
  std::byte* map() override {
    range_ = host_runtime().reserve(bytes_);
    return range_->base();
  }

 private:
  std::shared_ptr<PhysicalMemory> identity_;  // what handles of the object name
  std::size_t bytes_;
  std::shared_ptr<PhysicalMemory> memory_;
  std::shared_ptr<AddressRange> range_;
};

class FakeMulticast final : public MulticastDevice {
 public:
  explicit FakeMulticast(int gpu) : gpu_(gpu) {}

  std::atomic<bool> present{false};
  std::atomic<int> objects{0};  // that were made or imported

  std::string problem() override {
    if (const std::string off = multicast_disabled_by(); !off.empty()) return off + "=1";
    return present ? "" : "fake GPU " + std::to_string(gpu_) + " has no multicast";
  }
  std::array<std::uint8_t, 16> uuid() override { return {static_cast<std::uint8_t>(0xa0 + gpu_)}; }
  std::size_t granularity(int, std::size_t) override { return host_runtime().granularity(); }
  std::unique_ptr<MulticastObject> create(int, std::size_t bytes, HandleKind) override {
    ++objects;
    return std::make_unique<FakeMulticastObject>(host_runtime().allocate(1), bytes);
  }
  std::unique_ptr<MulticastObject> import_object(MemoryHandle handle, std::size_t bytes) override {
    ++objects;
    const std::size_t identity_bytes = host_runtime().granularity();
    return std::make_unique<FakeMulticastObject>(
        host_runtime().import_memory(std::move(handle), identity_bytes), bytes);
  }

 private:
  const int gpu_;
};

}  // namespace symm::test
