// What keeps a forked child away from its parent's groups.
//
// A child inherits sockets and shared mappings. Left alone it would keep a dead parent's sockets
// open (hiding the death from peers) and could write into live shared memory. So descriptors and
// mappings are registered here: a child closes the descriptors at once, and the mappings are not
// inherited (MADV_DONTFORK). Owners of such things must do nothing in a process of another
// generation than the one that made them; GuardedDescriptor (guarded_descriptor.hpp) does so.
//
// NOTE [Shared memory in a forked child]
// A program may have tensors in shared memory, and a plain load cannot raise. So a child maps the
// same memory at the same addresses once more, privately: it reads what is there, also what the
// parent writes later to a page that the child has not written, and what it writes is its own. The
// memory stays until the child ends. Where the parent has let go of the descriptor nothing can be
// mapped (that is memory of the library's own, in which no tensor is); the addresses are taken all
// the same, so that nothing else of the child comes to lie there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace symm {

// Grows by one in every forked child. A group remembers the value at its creation and refuses to
// work under another. Thread safe, costs one load.
std::uint32_t fork_generation() noexcept;

// While a ForkHold lives no thread of this process completes a fork(), so that making a descriptor
// or a mapping and registering it is one step to every child. Thread safe. Keep it for a few short
// system calls only; a thread must neither make a second one nor fork while it has one.
class ForkHold {
 public:
  ForkHold();
  ~ForkHold();
  ForkHold(const ForkHold&) = delete;
  ForkHold& operator=(const ForkHold&) = delete;

  // `fd` will be closed in every child forked from now on, until it is forgotten.
  void close_in_child(int fd);
  void forget(int fd) noexcept;

  // Children forked from now on have a private view of `fd` at the page-aligned range, a shared
  // mapping of it, in place of the mapping; nothing readable once `fd` is forgotten. Until
  // end_private_view(base). Throws Error(kSystem).
  void view_privately_in_child(void* base, std::size_t bytes, int fd);
  void end_private_view(void* base) noexcept;
};

}  // namespace symm
