// What a kind of device must offer to hold symmetric memory: physical allocations that can be
// handed to another process, and address ranges to map them into.
//
// NOTE [Physical memory and mappings]
// A PhysicalMemory owns bytes, a Mapping owns a piece of address space in which one such memory is
// visible, an AddressRange owns address space without memory. They are separate RAII owners: the
// same memory may be mapped twice (a peer segment and a contiguous view), and a mapping keeps its
// memory alive. Nothing here is collective. The host implementation is host_runtime.cpp; a GPU one
// lives in a device library (device_library.hpp) that is opened at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "symm_mem/file_descriptor.hpp"

namespace symm {

enum class DeviceKind { kHost, kCuda, kHip };

// "cpu", "cuda", "hip".
std::string_view device_kind_name(DeviceKind kind);

class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual std::size_t bytes() const = 0;  // a multiple of the runtime's granularity
};

class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
  virtual std::size_t bytes() const = 0;
};

class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::byte* base() const = 0;
  virtual std::size_t bytes() const = 0;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;

  // Sizes given to allocate() are rounded up to this.
  virtual std::size_t granularity() const = 0;

  // Zero-filled memory, allocated in full now, so that touching it later cannot fail. bytes >= 1.
  // Throws Error(kSystem) that names the size and the limit that was met.
  virtual std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) = 0;

  // A descriptor that another process can import; each call gives a new one.
  virtual FileDescriptor export_memory(const PhysicalMemory& memory) = 0;

  // Takes a descriptor from another process. Checks that it is what allocate() makes, that it
  // cannot shrink, and that it has `bytes` bytes; throws Error(kSecurity) otherwise.
  virtual std::shared_ptr<PhysicalMemory> import_memory(FileDescriptor descriptor,
                                                        std::size_t bytes) = 0;

  virtual std::shared_ptr<AddressRange> reserve(std::size_t bytes) = 0;

  // Maps all of `memory` for reading and writing, anywhere.
  virtual std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) = 0;

  // Maps all of `memory` at `offset` (a multiple of the granularity) inside `range`.
  virtual std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                          std::shared_ptr<AddressRange> range,
                                          std::size_t offset) = 0;
};

// The process's host runtime. Never fails.
DeviceRuntime& host_runtime();

}  // namespace symm
