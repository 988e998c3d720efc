// The physical memory behind an address range that another library has mapped.
//
// NOTE [Chunks]
// An allocator may reserve a long range of addresses and map handles into it one after another, as
// PyTorch's does with expandable segments. Such memory is found by walking the range. What that
// relies on, of the driver:
//  - it retains the handle behind an address where that was mapped from a handle, gives the value
//    that was mapped, and fails for memory of any other make (documented);
//  - asked for the address range around an address, it answers with the one mapping in which that
//    lies, not with the reservation. Documented only for allocations, and seen by several libraries
//    for mappings. So it is checked: the first and the last byte of the answer must have the same
//    handle, and each answer must begin where the one before ended. Where that does not hold the
//    memory counts as not shareable, and nothing worse comes of it.
//
// A retained handle is an owner like any other: the memory lives on, with the same handle, when its
// maker unmaps and releases it. So the same handle at an address means the same memory for as long
// as one holds it.
#pragma once

#include <cstddef>
#include <optional>

#include "symm_mem/device/gpu_device.hpp"

namespace symm {

// The chunks behind [data, data + bytes), bytes >= 1. nullopt where any part is not mapped from a
// handle, is memory of another device or of the host, cannot be exported, or is not in whole
// multiples of `granularity`. Throws Error(kSystem) where the device's context cannot be entered.
std::optional<ChunkedMemory> find_gpu_chunks(const GpuDevice& device, std::size_t granularity,
                                             const std::byte* data, std::size_t bytes);

}  // namespace symm
