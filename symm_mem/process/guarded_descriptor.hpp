// Owner of a descriptor that a forked child must not have: it is closed in every child at once,
// and this owner does nothing in a child (the number may already mean something else there).
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "symm_mem/process/file_descriptor.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

class GuardedDescriptor {
 public:
  GuardedDescriptor() = default;

  // Calls `make`, which returns a new descriptor or -1 with errno set and does not block; errno is
  // kept. No child can be forked between making and guarding.
  template <typename Make>
  static GuardedDescriptor open(Make&& make) {
    GuardedDescriptor result;
    ForkHold hold;
    FileDescriptor made(make());
    if (!made.valid()) return result;
    hold.close_in_child(made.get());
    result.fd_ = made.release();
    return result;
  }

  explicit GuardedDescriptor(FileDescriptor descriptor)
      : GuardedDescriptor(open([&] { return descriptor.release(); })) {}

  GuardedDescriptor(GuardedDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  GuardedDescriptor& operator=(GuardedDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  ~GuardedDescriptor() { reset(); }

  // -1 in a forked child.
  int get() const noexcept { return generation_ == fork_generation() ? fd_ : -1; }
  bool valid() const noexcept { return get() >= 0; }

  void reset() noexcept {
    if (valid()) {
      // Forgetting and closing is one step too: a child must neither inherit the descriptor nor
      // close another one that got the same number.
      ForkHold hold;
      hold.forget(fd_);
      ::close(fd_);
    }
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  std::uint32_t generation_ = fork_generation();
};

}  // namespace symm
