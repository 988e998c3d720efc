// Whether the memory of a tensor that another library has allocated is still where it was.
//
// NOTE [Lifetime of user buffers]
// Nothing is hooked into a storage whose memory is registered: PyTorch's allocator knows its own
// storages by the deleter of their pointer (it is how record_stream finds them), so that must stay
// what it is. A weak pointer to the StorageImpl is kept instead and asked whenever an address is
// looked up: the memory counts as registered for as long as that object lives and still has it.
// From then on the address belongs to whoever gets it next, and lookups do not find it any more.
// What was mapped for it is let go of by the next rendezvous that maps something; until then the
// physical memory stays allocated, since its handles are held here and by the peers, and nobody can
// come to read another's memory through an old mapping.
//
// While the storage lives its library does not put other memory at its addresses by itself. A
// program that does so all the same (that takes away memory under living tensors to lend it) must
// call as_symmetric() again, which compares the handles behind the addresses with those that were
// registered and starts anew where they differ.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>

namespace symm {

// Thread safe.
class RegisteredStorage {
 public:
  explicit RegisteredStorage(const c10::Storage& storage)
      : storage_(storage.getWeakStorageImpl()), base_(storage.data()), bytes_(storage.nbytes()) {}

  bool still_there() const noexcept {
    if (retired_.load(std::memory_order_acquire)) return false;
    const auto storage = storage_.lock();
    return storage && storage->data() == base_ && storage->nbytes() >= bytes_;
  }

  // Something else was found at its addresses.
  void retire() noexcept { retired_.store(true, std::memory_order_release); }

 private:
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* const base_;
  const std::size_t bytes_;
  std::atomic<bool> retired_{false};
};

}  // namespace symm
