// barrier: every rank publishes one empty step and waits for that of every other rank.
//
// Steps: 1. Bytes moved: none. On return every rank has entered.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

template <Executor X>
bool barrier(X& x) {
  x.publish(0);
  if (!x.await_all(0)) return false;
  x.read_done(0);
  return true;
}

}  // namespace symm
