#include "symm_mem/segment/local_heap.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace symm {

namespace {

struct Heap {
  std::mutex mutex;
  std::map<std::uintptr_t, std::weak_ptr<LocalSegment>> by_base;
};

// Never destroyed: a tensor may outlive every static of the program.
Heap& heap() {
  static Heap* const instance = new Heap;
  return *instance;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

std::shared_ptr<LocalSegment> allocate_on_local_heap(DeviceRuntime& runtime, std::size_t bytes) {
  std::shared_ptr<LocalSegment> segment = LocalSegment::allocate(runtime, bytes);
  LocalSegment* const raw = segment.get();
  // The entry goes before the memory does, so that a new segment at the same address is never
  // taken for the old one.
  std::shared_ptr<LocalSegment> tracked(raw,
                                        [owner = std::move(segment)](LocalSegment* gone) mutable {
                                          {
                                            std::lock_guard lock(heap().mutex);
                                            heap().by_base.erase(address(gone->base()));
                                          }
                                          owner.reset();
                                        });
  std::lock_guard lock(heap().mutex);
  heap().by_base[address(raw->base())] = tracked;
  return tracked;
}

std::shared_ptr<LocalSegment> allocate_on_local_heap(std::size_t bytes) {
  return allocate_on_local_heap(host_runtime(), bytes);
}

std::shared_ptr<LocalSegment> find_on_local_heap(const void* pointer, std::size_t bytes) {
  std::shared_ptr<LocalSegment> segment;  // outside the lock: letting go may take it again
  {
    std::lock_guard lock(heap().mutex);
    auto after = heap().by_base.upper_bound(address(pointer));
    if (after == heap().by_base.begin()) return nullptr;
    segment = std::prev(after)->second.lock();
  }
  if (!segment || !segment->contains(pointer, bytes)) return nullptr;
  return segment;
}

}  // namespace symm
