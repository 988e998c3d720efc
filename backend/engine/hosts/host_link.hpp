// What moves bytes between the hosts of a group.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "kernels/core/collective.hpp"

namespace symm {

class HostLink {
 public:
  virtual ~HostLink() = default;

  // "gloo", for messages.
  virtual const std::string& name() const = 0;

  // Sends `to[r]` to each group rank r and fills `from[r]` by what r sends here; counts in bytes,
  // and both sides of a pair must mean the same. Collective over the group; blocks. Throws Error.
  virtual void exchange(std::span<const Part> to, std::span<const Part> from,
                        std::chrono::milliseconds timeout) = 0;

  // Makes exchanges in progress, here and on the other hosts, throw. Local, any thread.
  virtual void abort() noexcept = 0;
};

}  // namespace symm
