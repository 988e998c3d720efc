// A rank's device segment: memory of its GPU at addresses that stay the same while the group is
// suspended and has no memory there.
//
// NOTE [Suspended groups]
// suspend() gives the physical memory of a group's workspaces back and resume() makes it again. The
// addresses of the device segments, this rank's and the peers', stay reserved, so that what holds
// one (tables, parameters in captured graphs) is right again afterwards. Kernels count in that
// memory and never reset a count, and a message may lie in it whose recv comes later: so its
// contents are kept meanwhile, in ordinary memory of the host. The workspace of the host holds
// nothing between calls; it is released and made anew.
//
// A physical allocation lives as long as any rank has mapped it. Both calls are therefore
// collective (communicator.cpp): no rank saves before every rank's operations have ended, nor
// returns from suspend() before all have let go.
//
// Thread safety: none; the caller's mutex is held.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/gpu/interface/group_kernels.hpp"
#include "symm_mem/device/device_runtime.hpp"

namespace symm {

class DeviceSegment {
 public:
  // Local. Throws Error(kSystem). `runtime` outlives the object.
  DeviceSegment(GpuRuntime& runtime, std::size_t bytes);

  std::byte* base() const { return range_->base(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t mapped_bytes() const { return range_->bytes(); }  // when there is memory
  bool has_memory() const { return mapping_ != nullptr; }
  // Where there is memory.
  const PhysicalMemory& memory() const { return *memory_; }

  // Nobody uses the memory in what follows. Local; each waits for its copy.
  // Keeps a copy of the contents. Throws Error(kSystem).
  void save(GroupKernels& kernels);
  void discard_copy() noexcept { copy_.reset(); }
  // Lets go of the memory. It is unmapped, which may wait for the device.
  void release() noexcept;
  // New memory at the same addresses, with the contents that were saved, whose copy stays. Throws
  // Error(kSystem), without memory then.
  void restore(GroupKernels& kernels);

 private:
  GpuRuntime& runtime_;
  const std::size_t bytes_;
  std::shared_ptr<PhysicalMemory> memory_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<AddressRange> range_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace symm
