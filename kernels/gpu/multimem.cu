// CUDA only: collectives on multicast addresses, by PTX's multimem instructions of compute
// capability 9.0 and more. Elsewhere the kernels are empty and multimem_kernel() has none. Never
// run on hardware.
//
// NOTE [Multimem]
// A load from the multicast address of an input asks the NVLink switch for the sum of all ranks'
// words; a store to the multicast address of an output reaches every rank. Each block meets the
// blocks of its number on the other ranks before it touches data and before it ends, on a signal
// channel of its own: first, every rank's stream has come here, so inputs are written and outputs
// free; last, every rank's block has ended, so that once all blocks of a launch have ended, nothing
// of it is under way anywhere. The same memory is known by two addresses, which is what the proxy
// fences are for.
#include "kernels/gpu/block_reduce.cuh"
#include "kernels/gpu/gpu_signal_kernels.hpp"
#include "kernels/gpu/multimem_params.hpp"
#include "kernels/gpu/signal.cuh"

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

// Stores 16 bytes, whatever they are, on every rank.
__device__ void push(std::byte* address, const Unit& unit) {
  asm volatile("multimem.st.relaxed.sys.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(__uint_as_float(unit.words[0])), "f"(__uint_as_float(unit.words[1])),
               "f"(__uint_as_float(unit.words[2])), "f"(__uint_as_float(unit.words[3]))
               : "memory");
}

__device__ void order_both_addresses() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// By the whole block; false when the kernel must end.
__device__ bool meet(const SignalParams& signals) {
  order_both_addresses();
  release_before_barrier();
  __syncthreads();
  release_after_barrier();
  const bool met = signal_barrier(signals, signals.channel + static_cast<int>(blockIdx.x));
  if (__syncthreads_and(met) == 0) return false;
  order_both_addresses();
  return true;
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

// One thread of the launch does what needs doing once.
__device__ bool is_first_thread() { return blockIdx.x == 0 && threadIdx.x == 0; }

__device__ void store_everywhere(const SignalParams& signals, const MultimemParams& call,
                                 std::uint64_t offset, const Unit& unit, std::uint64_t bytes) {
  for (int rank = 0; rank < signals.world_size; ++rank) {
    store_unit(call.outputs[rank] + offset, unit, bytes);
  }
}

template <Dtype dtype, ReduceOp op>
__device__ void all_reduce_units(const SignalParams& signals, const MultimemParams& call) {
  const auto world = static_cast<std::uint64_t>(signals.world_size);
  const auto rank = static_cast<std::uint64_t>(signals.rank);
  const std::uint64_t units = call.bytes / kUnitBytes;
  for_units(
      units * rank / world, units * (rank + 1) / world,
      [&](std::uint64_t i) { return pull<dtype, op>(call.input_multicast + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        push(call.output_multicast + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = call.bytes % kUnitBytes;
  if (rest == 0 || signals.rank != signals.world_size - 1 || !is_first_thread()) return;
  const std::uint64_t offset = units * kUnitBytes;
  const ReduceFacts facts{nullptr, false, 0, signals.world_size};
  UnitSum<ElementRule<dtype, op>> sum;
  for (int r = 0; r < signals.world_size; ++r) {
    sum.add(load_unit(call.inputs[r] + offset, rest), facts, r);
  }
  store_everywhere(signals, call, offset, sum.finish(facts), rest);
}

template <Dtype dtype, ReduceOp op>
__device__ void reduce_scatter_units(const SignalParams& signals, const MultimemParams& call) {
  const std::byte* const share =
      call.input_multicast + call.bytes * static_cast<std::uint64_t>(signals.rank);
  for_units(
      0, call.bytes / kUnitBytes,
      [&](std::uint64_t i) { return pull<dtype, op>(share + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        *reinterpret_cast<Unit*>(call.output + i * kUnitBytes) = unit;
      });
}

// This rank's input to `offset` of every rank's output.
__device__ void push_units(const SignalParams& signals, const MultimemParams& call,
                           std::uint64_t offset) {
  const std::uint64_t units = call.bytes / kUnitBytes;
  for_units(
      0, units,
      [&](std::uint64_t i) { return *reinterpret_cast<const Unit*>(call.input + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        push(call.output_multicast + offset + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = call.bytes % kUnitBytes;
  if (rest == 0 || !is_first_thread()) return;
  store_everywhere(signals, call, offset + units * kUnitBytes,
                   load_unit(call.input + units * kUnitBytes, rest), rest);
}

#endif

// `body` between the two meetings of the ranks, unless a kernel of the object has given up.
template <class Body>
__device__ void between_meetings([[maybe_unused]] const SignalParams& signals,
                                 [[maybe_unused]] const Body& body) {
#if SYMM_MULTIMEM
  if (__syncthreads_and(!SignalThread(signals).is_dead()) == 0) return;
  if (!meet(signals)) return;
  body();
  meet(signals);
#endif
}

template <Dtype dtype, ReduceOp op>
__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_reduce(const SYMM_GRID_CONSTANT SignalParams signals,
                    const SYMM_GRID_CONSTANT MultimemParams call) {
  between_meetings(signals, [&] {
#if SYMM_MULTIMEM
    if (call.kind == CollectiveKind::kAllReduce) {
      all_reduce_units<dtype, op>(signals, call);
    } else {
      reduce_scatter_units<dtype, op>(signals, call);
    }
#endif
  });
}

__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_move(const SYMM_GRID_CONSTANT SignalParams signals,
                  const SYMM_GRID_CONSTANT MultimemParams call) {
  between_meetings(signals, [&] {
#if SYMM_MULTIMEM
    if (call.kind == CollectiveKind::kAllGather) {
      push_units(signals, call, call.bytes * static_cast<std::uint64_t>(signals.rank));
    } else if (signals.rank == call.root) {
      push_units(signals, call, 0);
    }
#endif
  });
}

template <Dtype dtype>
const void* reduce_kernel_16(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reinterpret_cast<const void*>(&multimem_reduce<dtype, ReduceOp::kSum>);
    case ReduceOp::kMin:
      return reinterpret_cast<const void*>(&multimem_reduce<dtype, ReduceOp::kMin>);
    case ReduceOp::kMax:
      return reinterpret_cast<const void*>(&multimem_reduce<dtype, ReduceOp::kMax>);
    default:
      return nullptr;
  }
}

}  // namespace

const void* multimem_kernel(CollectiveKind kind, Dtype dtype, ReduceOp op) {
  if constexpr (SYMM_GPU_HIP) return nullptr;
  if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast) {
    return reinterpret_cast<const void*>(&multimem_move);
  }
  if (kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kReduceScatter) return nullptr;
  switch (dtype) {
    case Dtype::kFloat16:
      return reduce_kernel_16<Dtype::kFloat16>(op);
    case Dtype::kBFloat16:
      return reduce_kernel_16<Dtype::kBFloat16>(op);
    case Dtype::kFloat32:
      return op == ReduceOp::kSum
                 ? reinterpret_cast<const void*>(&multimem_reduce<Dtype::kFloat32, ReduceOp::kSum>)
                 : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace symm
