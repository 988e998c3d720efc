#include "backend/engine/legs/cpu_space.hpp"

#include <cstring>

#include "backend/engine/communicator.hpp"
#include "kernels/cpu/reduce_kernels.hpp"

namespace symm {

void CpuSpace::run_local(const CollectiveArgs& args, std::chrono::milliseconds timeout) {
  local_.run(args, timeout);
}

void CpuSpace::fold(const FoldCall& call) {
  const ReduceKernels& kernels = reduce_kernels(call.dtype, call.op, selected_isa());
  kernels.reduce(call.result, call.sources.data(), static_cast<int>(call.sources.size()), nullptr,
                 call.divisor, call.count);
}

void CpuSpace::copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace symm
