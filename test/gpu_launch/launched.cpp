#include "test/gpu_launch/launched.hpp"

#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <utility>

namespace symm::test {
namespace {

std::vector<Launched> launched;

// By address, which is that of a byte of the name's own.
std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> names;
  return names;
}
const void* kernel(const std::string& name) {
  static std::map<std::string, char> addresses;
  const void* const address = &addresses[name];
  names()[address] = name;
  return address;
}

WireKernels wire_kernels(const std::string& name) {
  WireKernels kernels;
  for (std::size_t wire = 0; wire < kWireKindCount; ++wire) {
    for (std::size_t world = 0; world < kWireWorldCount; ++world) {
      kernels.of[wire][world] = kernel(name + " wire " + std::to_string(kWireWorlds[world]));
    }
  }
  return kernels;
}
// Those of eight ranks have no kernel for any unit, as in the library.
WireKernels straight_kernels(const std::string& name) {
  WireKernels kernels = wire_kernels(name);
  kernels.two_take_sets = true;
  for (std::size_t world = 0; world < 3; ++world) {
    const std::string straight = name + " straight " + std::to_string(kWireWorlds[world]);
    kernels.few_tiles[world].whole = kernel(straight + " whole");
    if (world < 2) kernels.few_tiles[world].any = kernel(straight + " any");
    if (world < 2) kernels.few_tiles[world].rounds = kernel(straight + " rounds");
  }
  return kernels;
}
BulkKernels bulk_kernels(const std::string& name) {
  BulkKernels kernels;
  for (const void*& each : kernels.of) each = kernel(name + " bulk");
  return kernels;
}

}  // namespace

std::vector<Launched> take_launched() { return std::exchange(launched, {}); }

}  // namespace symm::test

namespace symm {

using test::kernel;

void reduce_float32(ReduceKernelTable& table) {
  auto& row = table[static_cast<std::size_t>(Dtype::kFloat32)];
  const auto sum = static_cast<std::size_t>(ReduceOp::kSum);
  row[sum] = {test::straight_kernels("sum"), test::bulk_kernels("sum"), kernel("sum fold")};
}
void reduce_float16(ReduceKernelTable&) {}
void reduce_float8(ReduceKernelTable&) {}
void reduce_narrow_integer(ReduceKernelTable&) {}
void reduce_wide_integer(ReduceKernelTable&) {}
WireKernels move_wire_kernels() { return test::straight_kernels("move"); }
WireKernels share_wire_kernels() { return test::straight_kernels("share"); }
BulkKernels move_bulk_kernels() { return test::bulk_kernels("move"); }
WireKernels barrier_kernels() {
  WireKernels kernels = test::straight_kernels("barrier");
  for (FewTilesKernels& of_world : kernels.few_tiles) of_world.any = of_world.rounds = nullptr;
  return kernels;
}
WireKernels copies_barrier_kernels() { return test::wire_kernels("copies"); }
const void* transfer_kernel_address(MessageForms) { return kernel("transfer"); }
const void* multimem_kernel_address(CollectiveKind, Dtype, ReduceOp) { return nullptr; }
NormKernels norm_kernels(Dtype) {
  return {.wire = test::wire_kernels("norm"), .rows = {kernel("rows any"), kernel("rows whole")}};
}
LoneMessageKernels lone_message_kernels() {
  return {kernel("box whole"), kernel("box any"), kernel("boxes whole"), kernel("boxes any")};
}

}  // namespace symm

// What the launches use of the runtime.
extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, std::size_t,
                             cudaStream_t) {
  const auto found = symm::test::names().find(function);
  symm::test::launched.push_back({found == symm::test::names().end() ? "" : found->second,
                                  grid.x * grid.y * grid.z, block.x * block.y * block.z});
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof(*attributes));
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "none"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

}  // extern "C"
