// User buffers: tensors of other allocators, made symmetric where they are.
//
// NOTE [User buffers]
// Memory of a GPU that its allocator has mapped chunk by chunk from handles that can be exported
// (gpu_chunks.hpp): what PyTorch's caching allocator makes with expandable_segments:True. The
// tensor's storage is registered as a whole, so all its views are symmetric with it and need no
// more. Every rank's storage must have the same size; how it is cut into chunks may differ. Memory
// of cudaMalloc has no such handles, and memory of the CPU that symm has not allocated has no
// descriptor.
//
// The chunks may hold other tensors too, which peers could then reach as well; nothing of ours
// does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "symm_mem/c10d/allocation.hpp"

namespace symm {

// The storage of one tensor, registered for as long as this lives; for longer, once it is shared.
class UserBuffer {
 public:
  // Local. nullopt where the storage cannot be registered: see above; and for memory of symm
  // itself, and a storage that does not begin at a multiple of 128 bytes. What was registered
  // before is found again where the same memory is still there.
  static std::optional<UserBuffer> of(const at::Tensor& tensor);

  // As of(), for a storage of which it is known that `memory` backs all of it.
  UserBuffer(const at::Tensor& tensor, ChunkedMemory memory);

  // The tensor's offset in what was registered, and the size of that; in bytes.
  std::int64_t offset() const { return offset_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(allocation_->bytes()); }

  // Makes the storage symmetric in the group of that name. Collective, in one order with rendezvous
  // and contiguous_view; every rank must come with a user buffer of as many bytes. Returns "", or
  // why it cannot be: then on every rank, no rank has anything of it, and the group goes on. Throws
  // Error where the group cannot go on, and what c10d throws for an unknown group. Blocks; must be
  // called without Python's interpreter lock.
  std::string share(const std::string& group_name, bool symmetric = false);

 private:
  UserBuffer(const at::Tensor& tensor, std::shared_ptr<Allocation> allocation);

  c10::Storage storage_;  // so that the memory stays until it is shared
  std::shared_ptr<Allocation> allocation_;
  std::int64_t offset_;
};

}  // namespace symm
