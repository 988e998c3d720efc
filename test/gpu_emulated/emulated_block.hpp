// The threads of one block of an emulated GPU: fibers of the calling thread of the host, which take
// turns where they meet (barriers, votes, shuffles) and where they look at the clock. Lines of
// tiles (NOTE [Wires] in kernels/gpu/wire/tile.cuh) need a host whose stores are seen in their
// order.
#pragma once

#include <functional>

#include "test/gpu_emulated/cuda_runtime.h"

namespace symm::test {

// Runs `body` once in each thread of block `index`; returns when all have ended. Aborts the process
// where all wait for each other.
void run_block(dim3 index, dim3 grid, dim3 threads, const std::function<void()>& body);

}  // namespace symm::test
