// A device that is the host under another name.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "symm_mem/device/device_runtime.hpp"

namespace symm::test {

// Passes everything on to the host's runtime; tests change one thing of it.
class PassingRuntime : public DeviceRuntime {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::size_t granularity() const override { return host_runtime().granularity(); }
  std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) override {
    return host_runtime().allocate(bytes);
  }
  HandleKinds handle_kinds(const PhysicalMemory& memory) override {
    return host_runtime().handle_kinds(memory);
  }
  MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) override {
    return host_runtime().export_memory(memory, kind);
  }
  std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) override {
    return host_runtime().import_memory(std::move(handle), bytes);
  }
  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    return host_runtime().reserve(bytes);
  }
  std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) override {
    return host_runtime().map(std::move(memory));
  }
  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    return host_runtime().map_at(std::move(memory), std::move(range), offset);
  }
  void clear(std::byte* data, std::size_t bytes) override { host_runtime().clear(data, bytes); }
};

}  // namespace symm::test
