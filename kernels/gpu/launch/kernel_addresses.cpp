#include "kernels/gpu/launch/kernel_addresses.hpp"

#include <algorithm>

#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/lone_message_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm {

const ReduceKernelTable& reduce_table() {
  static const ReduceKernelTable table = [] {
    ReduceKernelTable entries;
    for (const auto enter : {reduce_float16, reduce_float32, reduce_float8, reduce_narrow_integer,
                             reduce_wide_integer}) {
      enter(entries);
    }
    return entries;
  }();
  return table;
}

void load_kernels() {
  const auto load = [](const void* kernel) {
    if (kernel != nullptr) load_kernel(kernel);
  };
  const auto load_all = [&](const WireKernels& kernels) {
    for (const auto& of_wire : kernels.of) {
      for (const void* kernel : of_wire) load(kernel);
    }
    for (const FewTilesKernels& of_world : kernels.few_tiles) {
      load(of_world.whole);
      load(of_world.any);
      load(of_world.rounds);
    }
  };
  for (int forms = 0; forms < kMessageFormsCount; ++forms) {
    load(transfer_kernel_address(static_cast<MessageForms>(forms)));
  }
  load(lone_message_kernels().whole);
  load(lone_message_kernels().any);
  load(lone_message_kernels().many_whole);
  load(lone_message_kernels().many_any);
  const auto load_bulk = [&](const BulkKernels& kernels) {
    for (const void* kernel : kernels.of) load(kernel);
  };
  load_all(move_wire_kernels());
  load_all(share_wire_kernels());
  load_bulk(move_bulk_kernels());
  load_all(barrier_kernels());
  load_all(copies_barrier_kernels());
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64}) {
    const NormKernels kernels = norm_kernels(dtype);
    load_all(kernels.wire);
    for (const auto& of_world : kernels.few_rows) {
      for (const void* kernel : of_world) load(kernel);
    }
    load(kernels.rows.any);
    load(kernels.rows.whole);
  }
  for (const auto& of_dtype : reduce_table()) {
    for (const ReduceKernels& kernels : of_dtype) {
      load_all(kernels.wire);
      load_bulk(kernels.bulk);
      load(kernels.fold);
    }
  }
}

void load_multimem_kernels(MultimemKernel address) {
  const auto load = [](const void* kernel) {
    if (kernel != nullptr) load_kernel(kernel);
  };
  load(address(CollectiveKind::kAllGather, Dtype::kUInt8, ReduceOp::kSum));
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      load(address(CollectiveKind::kAllReduce, static_cast<Dtype>(dtype),
                   static_cast<ReduceOp>(op)));
    }
  }
}

void launch_fold(const FoldCall& call, StreamHandle stream) {
  constexpr std::uint64_t kThreads = 512;
  constexpr std::uint64_t kMostBlocks = 128;  // leaves room for kernels of other streams
  if (call.sources.size() > static_cast<std::size_t>(kMostFolded)) {
    throw Error(ErrorCode::kUnsupported, "a fold of ", call.sources.size(), " sources on a GPU; ",
                kMostFolded, " at most");
  }
  const ReductionRule rule = reduction_rule(call.dtype, call.op);
  FoldParams params{};
  params.world_size = static_cast<std::int32_t>(call.sources.size());
  params.divisor = call.op == ReduceOp::kAvg ? call.divisor : 0;
  params.dtype = rule.dtype;
  params.op = rule.op;
  params.element_bytes = static_cast<std::uint32_t>(dtype_bytes(rule.dtype));
  params.result = call.result;
  params.count = call.count * static_cast<std::uint64_t>(rule.elements);
  const std::uint64_t of_threads = kThreads * 16 / params.element_bytes;  // 16 bytes a thread
  const std::uint64_t blocks = std::clamp<std::uint64_t>(params.count / of_threads, 1, kMostBlocks);
  const std::uint64_t even = (params.count + blocks - 1) / blocks;
  params.block_elements = (even + of_threads - 1) / of_threads * of_threads;
  std::copy(call.sources.begin(), call.sources.end(), params.sources);
  const void* const kernel =
      reduce_table()[static_cast<std::size_t>(rule.dtype)][static_cast<std::size_t>(rule.op)].fold;
  launch_kernel(kernel, static_cast<unsigned>(blocks), kThreads, stream, params);
}

}  // namespace symm
