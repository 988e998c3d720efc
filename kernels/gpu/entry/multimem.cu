// CUDA only: collectives on multicast addresses, by PTX's multimem instructions of compute
// capability 9.0 and more. Elsewhere the kernels are empty and multimem_kernel_address() has none.
// Never run on hardware.
//
// NOTE [Multimem]
// A load from the multicast address of an input makes the NVLink switch combine all ranks' words; a
// store to the multicast address of an output reaches every rank. A block is a channel (NOTE
// [Channels] in block_executor.cuh) with one step and no data in slots: `ready` is its entry
// barrier, `done` its exit barrier. After the entry barrier the stream of every rank has reached
// this call, so inputs are written and outputs free; after the exit barrier the same block of every
// rank has ended, so that after all blocks of a launch no access of it is under way anywhere. The
// location exchange comes with the step, and a rank reads and writes memory only where the
// locations of all ranks are equal. The same memory has two addresses, hence the proxy fences.
#include "kernels/gpu/entry/kernels.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

#if SYMM_MULTIMEM

constexpr int kUnrolled = 4;  // independent loads in flight a thread

#define SYMM_PULL(instruction, address, unit)                                           \
  asm volatile("multimem.ld_reduce.relaxed.sys." instruction " {%0, %1, %2, %3}, [%4];" \
               : "=r"((unit).words[0]), "=r"((unit).words[1]), "=r"((unit).words[2]),   \
                 "=r"((unit).words[3])                                                  \
               : "l"(address)                                                           \
               : "memory")

// The combination of all ranks' 16 bytes behind `address`.
template <Dtype dtype, ReduceOp op>
__device__ Unit pull(const std::byte* address) {
  Unit unit;
  if constexpr (dtype == Dtype::kFloat32) {
    static_assert(op == ReduceOp::kSum);
    float a;
    float b;
    float c;
    float d;
    asm volatile("multimem.ld_reduce.relaxed.sys.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
                 : "l"(address)
                 : "memory");
    unit = {{__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)}};
  } else if constexpr (dtype == Dtype::kFloat16) {
    if constexpr (op == ReduceOp::kSum) SYMM_PULL("add.acc::f32.v4.f16x2", address, unit);
    if constexpr (op == ReduceOp::kMin) SYMM_PULL("min.v4.f16x2", address, unit);
    if constexpr (op == ReduceOp::kMax) SYMM_PULL("max.v4.f16x2", address, unit);
  } else {
    static_assert(dtype == Dtype::kBFloat16);
    if constexpr (op == ReduceOp::kSum) SYMM_PULL("add.acc::f32.v4.bf16x2", address, unit);
    if constexpr (op == ReduceOp::kMin) SYMM_PULL("min.v4.bf16x2", address, unit);
    if constexpr (op == ReduceOp::kMax) SYMM_PULL("max.v4.bf16x2", address, unit);
  }
  return unit;
}
#undef SYMM_PULL

// Stores 16 bytes, of any type, on every rank.
__device__ void push(std::byte* address, const Unit& unit) {
  asm volatile("multimem.st.relaxed.sys.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(__uint_as_float(unit.words[0])), "f"(__uint_as_float(unit.words[1])),
               "f"(__uint_as_float(unit.words[2])), "f"(__uint_as_float(unit.words[3]))
               : "memory");
}

__device__ void order_both_addresses() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// False where the locations of a peer's tensors differ from those of this rank. By the whole block,
// after the location exchange.
__device__ bool same_locations(const GroupParams& group, const CollectiveParams& call,
                               BlockExecutor<NoReducer>& channel) {
  const int peer = static_cast<int>(threadIdx.x);
  bool ok = true;
  if (peer < group.world_size && peer != group.rank) {
    const std::uint64_t location = channel.state().location[peer];
    const auto theirs = __builtin_bit_cast(std::uint64_t, channel.state().factor[peer]);
    const auto mine = __builtin_bit_cast(std::uint64_t, call.factor);
    if (location != call.location) {
      ok = channel.waiter().fail(DeviceFault::kAsymmetricUse, peer, location, call.location);
    } else if (theirs != mine) {
      ok = channel.waiter().fail(DeviceFault::kAsymmetricUse, peer, theirs, mine);
    }
  }
  return block_all(ok);
}

// Calls store(i, load(i)) for the units [begin, end), by all threads of the grid.
template <class Load, class Store>
__device__ void for_units(std::uint64_t begin, std::uint64_t end, const Load& load,
                          const Store& store) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = begin + std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kUnrolled - 1) * threads < end; i += kUnrolled * threads) {
    Unit units[kUnrolled];
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) units[k] = load(i + k * threads);
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) store(i + k * threads, units[k]);
  }
  for (; i < end; i += threads) store(i, load(i));
}

// The thread of the launch that handles the end of a message.
__device__ bool is_first_thread() { return blockIdx.x == 0 && threadIdx.x == 0; }

__device__ std::uint64_t bytes_of(const CollectiveParams& call) {
  return call.count * call.element_bytes;
}

__device__ void store_everywhere(const GroupParams& group, const MultimemParams& memory,
                                 std::uint64_t offset, const Unit& unit, std::uint64_t bytes) {
  for (int rank = 0; rank < group.world_size; ++rank) {
    store_unit(memory.outputs[rank] + offset, unit, bytes);
  }
}

template <Dtype dtype, ReduceOp op>
__device__ void all_reduce_units(const GroupParams& group, const CollectiveParams& call,
                                 const MultimemParams& memory) {
  const auto world = static_cast<std::uint64_t>(group.world_size);
  const auto rank = static_cast<std::uint64_t>(group.rank);
  const std::uint64_t units = bytes_of(call) / kUnitBytes;
  for_units(
      units * rank / world, units * (rank + 1) / world,
      [&](std::uint64_t i) { return pull<dtype, op>(memory.input_multicast + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        push(memory.output_multicast + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = bytes_of(call) % kUnitBytes;
  if (rest == 0 || group.rank != group.world_size - 1 || !is_first_thread()) return;
  const std::uint64_t offset = units * kUnitBytes;
  const ReduceFacts facts{nullptr, false, 0, group.world_size};
  UnitSum<ElementRule<dtype, op>> sum;
  for (int r = 0; r < group.world_size; ++r) {
    sum.add(load_unit(memory.inputs[r] + offset, rest), facts, r);
  }
  store_everywhere(group, memory, offset, sum.finish(facts), rest);
}

// The output is ordinary memory, at any address.
template <Dtype dtype, ReduceOp op>
__device__ void reduce_scatter_units(const GroupParams& group, const CollectiveParams& call,
                                     const MultimemParams& memory) {
  const std::uint64_t bytes = bytes_of(call);
  const std::byte* const share =
      memory.input_multicast + bytes * static_cast<std::uint64_t>(group.rank);
  auto* const output = static_cast<std::byte*>(call.output);
  for_units(
      0, bytes / kUnitBytes,
      [&](std::uint64_t i) { return pull<dtype, op>(share + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        store_unit(output + i * kUnitBytes, unit, kUnitBytes);
      });
}

// This rank's input, which is ordinary memory at any address, to `offset` of every rank's output.
__device__ void push_units(const GroupParams& group, const CollectiveParams& call,
                           const MultimemParams& memory, std::uint64_t offset) {
  const auto* const input = static_cast<const std::byte*>(call.input);
  const std::uint64_t units = bytes_of(call) / kUnitBytes;
  for_units(
      0, units, [&](std::uint64_t i) { return load_unit(input + i * kUnitBytes, kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        push(memory.output_multicast + offset + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = bytes_of(call) % kUnitBytes;
  if (rest == 0 || !is_first_thread()) return;
  store_everywhere(group, memory, offset + units * kUnitBytes,
                   load_unit(input + units * kUnitBytes, rest), rest);
}

#endif

// Runs `body` between the entry and the exit barrier of the ranks.
template <class Body>
__device__ void between_barriers([[maybe_unused]] const GroupParams& group,
                                 [[maybe_unused]] const CollectiveParams& call,
                                 [[maybe_unused]] const WaitParams& wait,
                                 [[maybe_unused]] const Body& body) {
#if SYMM_MULTIMEM
  run_channel<NoReducer>(group, call, wait, [&](auto& channel) {
    order_both_addresses();
    channel.publish(0);
    if (!channel.await_all(0) || !same_locations(group, call, channel)) return false;
    order_both_addresses();
    body();
    order_both_addresses();
    // The locations are not 0, so the end waits until every peer is done with the step.
    channel.read_done(0);
    return true;
  });
  order_both_addresses();
#endif
}

template <Dtype dtype, ReduceOp op>
__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_reduce_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                           const SYMM_GRID_CONSTANT CollectiveParams call,
                           const SYMM_GRID_CONSTANT WaitParams wait,
                           [[maybe_unused]] const SYMM_GRID_CONSTANT MultimemParams memory) {
  between_barriers(group, call, wait, [&] {
#if SYMM_MULTIMEM
    if (call.kind == CollectiveKind::kAllReduce) {
      all_reduce_units<dtype, op>(group, call, memory);
    } else {
      reduce_scatter_units<dtype, op>(group, call, memory);
    }
#endif
  });
}

__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_move_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                         const SYMM_GRID_CONSTANT CollectiveParams call,
                         const SYMM_GRID_CONSTANT WaitParams wait,
                         [[maybe_unused]] const SYMM_GRID_CONSTANT MultimemParams memory) {
  between_barriers(group, call, wait, [&] {
#if SYMM_MULTIMEM
    if (call.kind == CollectiveKind::kAllGather) {
      push_units(group, call, memory, bytes_of(call) * static_cast<std::uint64_t>(group.rank));
    } else if (group.rank == call.root) {
      push_units(group, call, memory, 0);
    }
#endif
  });
}

struct ReduceEntry {
  Dtype dtype;
  ReduceOp op;
  const void* kernel;
};

template <Dtype dtype, ReduceOp op>
ReduceEntry reduce_entry() {
  return {dtype, op, reinterpret_cast<const void*>(&multimem_reduce_kernel<dtype, op>)};
}

}  // namespace

const void* multimem_kernel_address(CollectiveKind kind, Dtype dtype, ReduceOp op) {
  if constexpr (!kGpuHasMultimem) return nullptr;
  if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast) {
    return reinterpret_cast<const void*>(&multimem_move_kernel);
  }
  if (kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kReduceScatter) return nullptr;
  for (const ReduceEntry& entry : {reduce_entry<Dtype::kFloat16, ReduceOp::kSum>(),
                                   reduce_entry<Dtype::kFloat16, ReduceOp::kMin>(),
                                   reduce_entry<Dtype::kFloat16, ReduceOp::kMax>(),
                                   reduce_entry<Dtype::kBFloat16, ReduceOp::kSum>(),
                                   reduce_entry<Dtype::kBFloat16, ReduceOp::kMin>(),
                                   reduce_entry<Dtype::kBFloat16, ReduceOp::kMax>(),
                                   reduce_entry<Dtype::kFloat32, ReduceOp::kSum>()}) {
    if (entry.dtype == dtype && entry.op == op) return entry.kernel;
  }
  return nullptr;
}

}  // namespace symm
