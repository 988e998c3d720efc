// Memory that can become symmetric, found again by address.
//
// allocate_on_local_heap() makes a LocalSegment and remembers where it lies, so that somebody who
// holds only a pointer (a tensor) can name the segment to rendezvous with. Memory of all devices
// shares one address space, so a pointer alone tells whose it is. Local, thread safe.
#pragma once

#include <cstddef>
#include <memory>

#include "symm_mem/segment/segment.hpp"

namespace symm {

// The segment is forgotten when its last owner lets go. Throws Error(kSystem).
std::shared_ptr<LocalSegment> allocate_on_local_heap(DeviceRuntime& runtime, std::size_t bytes);

// In host memory.
std::shared_ptr<LocalSegment> allocate_on_local_heap(std::size_t bytes);

// The segment of allocate_on_local_heap() in which [pointer, pointer + bytes) lies; interior
// pointers are fine. nullptr where there is none.
std::shared_ptr<LocalSegment> find_on_local_heap(const void* pointer, std::size_t bytes);

}  // namespace symm
