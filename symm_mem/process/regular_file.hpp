// Reading of small files that a user has named.
#pragma once

#include <cstddef>
#include <string>

namespace symm {

// The content of `path`, a regular file of at most `most` bytes. Anything else is refused without
// being read, so that no fifo and no device can block. Throws Error(kInvalidArgument); the message
// begins with `what` and says what was found. Local, thread safe.
std::string read_regular_file(const std::string& path, std::size_t most, const std::string& what);

}  // namespace symm
