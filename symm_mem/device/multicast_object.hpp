// Memory of several GPUs behind one address: what is stored there is stored on all of them, and a
// load can combine what all of them hold.
//
// NOTE [Multicast objects]
// One rank creates the object for a number of devices and exports it; the others import it. Every
// rank adds its own device, and only when all have done so may anyone bind memory, since binding
// waits inside the driver for devices that are missing. An object is of use once every rank has
// bound and mapped. symm_mem/segment/multicast_team.hpp carries these steps out for a group.
//
// Never run on hardware: this is tested against a stand-in for the driver alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/device/memory_handle.hpp"

namespace symm {

// This process's share in an object. Undoes on destruction what it has done, in reverse order, and
// with errors ignored; in a forked child it does nothing. Not thread safe.
class MulticastObject {
 public:
  virtual ~MulticastObject() = default;

  virtual MemoryHandle export_handle(HandleKind kind) = 0;

  // Each of these once, in this order. All throw Error(kSystem) that names the GPU.
  virtual void add_device() = 0;
  // All of `memory`, which the object keeps alive.
  virtual void bind(std::shared_ptr<PhysicalMemory> memory) = 0;
  // For reading and writing by this device; the address is valid for as long as the object lives.
  virtual std::byte* map() = 0;
};

// Thread safe.
class MulticastDevice {
 public:
  virtual ~MulticastDevice() = default;

  // Why this device has no multicast, "" where it has. Where multicast_disabled() says so, the
  // answer names the variable and the device is not asked.
  virtual std::string problem() = 0;

  // Which GPU this is, whatever number a process gives it.
  virtual std::array<std::uint8_t, 16> uuid() = 0;

  // What `bytes` must be a multiple of to be bound on `devices` GPUs. Throws Error(kSystem).
  virtual std::size_t granularity(int devices, std::size_t bytes) = 0;

  // An object of `bytes` bytes on `devices` GPUs that can be exported as `kind`. Throws Error:
  // kUnsupported with problem()'s text, kSystem.
  virtual std::unique_ptr<MulticastObject> create(int devices, std::size_t bytes,
                                                  HandleKind kind) = 0;
  // The object of `bytes` bytes that another process created. As create(), and kSecurity for what
  // is no handle.
  virtual std::unique_ptr<MulticastObject> import_object(MemoryHandle handle,
                                                         std::size_t bytes) = 0;
};

}  // namespace symm
