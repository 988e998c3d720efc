// What keeps a forked child away from its parent's groups.
//
// A child inherits sockets and shared mappings. Left alone it would keep a dead parent's sockets
// open (hiding the death from peers) and could write into live shared memory. So descriptors and
// mappings are registered here: a child closes the descriptors at once, and the mappings are not
// inherited (MADV_DONTFORK).
#pragma once

#include <cstddef>
#include <cstdint>

namespace symm {

// Grows by one in every forked child. A group remembers the value at its creation and refuses to
// work under another. Thread safe, costs one load.
std::uint32_t fork_generation() noexcept;

// `fd` will be closed in every child forked from now on. Local, thread safe.
void close_on_fork(int fd);
void forget_on_fork(int fd) noexcept;

// The range is not mapped in children forked from now on.
void unmap_on_fork(void* base, std::size_t bytes);

}  // namespace symm
