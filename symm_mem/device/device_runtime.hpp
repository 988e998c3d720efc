// What a kind of device must have to hold symmetric memory: physical allocations that can be handed
// to another process, and address ranges to map them into.
//
// NOTE [Physical memory and mappings]
// A PhysicalMemory owns bytes, a Mapping owns a range of address space in which one such memory is
// visible, an AddressRange owns address space without memory. They are separate RAII owners: the
// same memory may be mapped twice (a peer segment and a contiguous view), and a mapping keeps its
// memory alive. Nothing here is collective. The host implementation is host_runtime.cpp; a GPU one
// lives in a device library (device_library.hpp) that is opened at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/signal_kernels.hpp"
#include "symm_mem/device/memory_handle.hpp"
#include "symm_mem/process/file_descriptor.hpp"

namespace symm {

class MulticastDevice;  // multicast_object.hpp

enum class DeviceKind { kHost, kCuda, kHip };

// "cpu", "cuda", "hip".
std::string_view device_kind_name(DeviceKind kind);

class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual std::size_t bytes() const = 0;  // a multiple of the runtime's granularity
  // Lets go of what exporting and mapping need, where that is something: neither is possible from
  // now on. Mappings stay.
  virtual void close_handle() noexcept {}
};

// Physical chunks that are side by side in one range of addresses: a buffer that begins `start`
// bytes into the first of `chunks` and ends in the last.
struct ChunkedMemory {
  std::vector<std::shared_ptr<PhysicalMemory>> chunks;
  std::size_t start = 0;

  // Of all chunks.
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& chunk : chunks) sum += chunk->bytes();
    return sum;
  }
};

class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
  virtual std::size_t bytes() const = 0;
};

// Addresses at which all of a PhysicalMemory is visible.
class Mapping : public AddressRange {
 public:
  // The range that it is in, which keeps the addresses when the mapping has gone; null where there
  // is none. A GPU's mapping always has one.
  virtual std::shared_ptr<AddressRange> range() const { return nullptr; }
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

  // The kinds of handle by which `memory` can be exported; at least one.
  virtual HandleKinds handle_kinds(const PhysicalMemory& memory) = 0;

  // A handle of `kind` that another process can import; each call gives a new one. Throws
  // Error(kSystem).
  virtual MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) = 0;
  FileDescriptor export_descriptor(const PhysicalMemory& memory) {
    return std::get<FileDescriptor>(export_memory(memory, HandleKind::kDescriptor));
  }

  // Takes a handle from another process. Checks that it is what allocate() makes, that it cannot
  // shrink, and that it has `bytes` bytes; throws Error(kSecurity) otherwise.
  virtual std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) = 0;

  virtual std::shared_ptr<AddressRange> reserve(std::size_t bytes) = 0;

  // Maps all of `memory` for reading and writing, anywhere.
  virtual std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) = 0;

  // Maps all of `memory` at `offset` (a multiple of the granularity) inside `range`.
  virtual std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                          std::shared_ptr<AddressRange> range,
                                          std::size_t offset) = 0;
  // Fills memory that is mapped here, by this process or for it, with zeros, and returns when they
  // are there; waits for nothing else that the device has been given. Throws Error(kSystem).
  virtual void clear(std::byte* data, std::size_t bytes) = 0;

  // For map_at(): throws Error(kInvalidArgument) for what it cannot do.
  void check_place(const PhysicalMemory& memory, const AddressRange& range,
                   std::size_t offset) const;

  // The chunks that back [data, data + bytes), memory of this device that another library has made
  // and mapped here; each of them can be exported, and stays what it is, wherever it is mapped, for
  // as long as the result lives. nullopt where there are none, which is so for all memory that is
  // not made in chunks. Local; bytes >= 1. Throws Error(kSystem).
  virtual std::optional<ChunkedMemory> find_chunks(const std::byte* /*data*/,
                                                   std::size_t /*bytes*/) {
    return std::nullopt;
  }

  // Whether both are the same physical memory. Both are of this runtime.
  virtual bool is_same(const PhysicalMemory& one, const PhysicalMemory& other) {
    return &one == &other;
  }

  // What this device can do with multicast objects; null for a kind of device that has none. Lives
  // as long as the runtime.
  virtual MulticastDevice* multicast() { return nullptr; }
};

using GpuUuid = std::array<std::uint8_t, 16>;

// Which GPU this is, whatever number a process gives it.
struct GpuIdentity {
  std::string name;  // "NVIDIA H100"
  GpuUuid uuid{};
  std::string uuid_text() const;  // "GPU-01234567-89ab-cdef-0123-456789abcdef"
  int index = 0;                  // in this process
  int multiprocessors = 0;
  int architecture = 0;  // 90 for compute capability 9.0
};

// A runtime of device memory, which also knows streams and has the kernels. One object a device and
// process, never destroyed. Thread safe.
class GpuRuntime : public DeviceRuntime {
 public:
  virtual const GpuIdentity& identity() const = 0;

  // The GPUs in whose memory a line of 128 bytes that one instruction of a warp stores, or loads,
  // is seen whole (NOTE [Wires] in tile.cuh): this one, and those to which all of the way is
  // NVLink. Without those that this process cannot see. Throws Error(kSystem).
  virtual std::vector<GpuUuid> gpus_with_lines() = 0;

  // A new stream of the device, of the highest priority or of the usual one, which no other one
  // waits for of itself, nor it for another. It is never destroyed: a framework's allocator may
  // name a stream long after its last use. Throws Error(kSystem).
  virtual StreamHandle make_stream(bool high_priority) = 0;

  // A number that differs between ongoing captures; 0 where `stream` is not captured. Throws
  // Error(kSystem) when it was and the capture has been invalidated.
  virtual std::uint64_t capture_id(StreamHandle stream) = 0;

  // Of a stream in a graph capture, which has just been made to wait for another one: what is put
  // on it next no longer names those nodes that others which it names follow anyway, a few steps
  // back. Every one is an edge of the graph, for which each launch pays, and a stream that waits
  // again and again and does nothing itself collects all that it ever waited for. The order stays
  // as it was. Nothing elsewhere, and where the runtime cannot say what follows what. Does not
  // throw.
  virtual void drop_implied_dependencies(StreamHandle stream) noexcept = 0;

  // For RelaxedCapture. Returns what to give back to restore_capture_mode(). Neither throws.
  virtual int relax_capture_mode() noexcept = 0;
  virtual void restore_capture_mode(int before) noexcept = 0;

  // Waits until all that was put on this device has ended, well or not. Throws Error(kSystem).
  virtual void synchronize() = 0;
  // True once the device's context is in error, so that nothing which was put on it will end well.
  // Asks, and waits for nothing.
  virtual bool is_in_error() noexcept = 0;

  // Loads every kernel now, so that a later launch never synchronises the device. Cold.
  virtual std::unique_ptr<GroupKernels> make_group_kernels(const GroupKernelsConfig& config) = 0;

  // As make_group_kernels(); takes one granule of device memory.
  virtual std::unique_ptr<SignalKernels> make_signal_kernels(const SignalKernelsConfig& config) = 0;
};

// While it lives this thread may do what a graph capture in this or another thread else forbids it:
// asking an uncaptured event whether it is done, waiting for the device.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(GpuRuntime& runtime)
      : runtime_(runtime), before_(runtime.relax_capture_mode()) {}
  ~RelaxedCapture() { runtime_.restore_capture_mode(before_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  GpuRuntime& runtime_;
  const int before_;
};

// The process's host runtime. Never fails.
DeviceRuntime& host_runtime();

}  // namespace symm
