#include "test/gpu/multimem/stand_in.hpp"

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/entry/multimem_kernels.cuh"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm::test {

namespace {

__device__ unsigned forbidden_accesses;

// A multicast address stands for the table of the ranks' addresses, MultimemParams::inputs or
// outputs: it is never dereferenced. A load folds the ranks' words in float32, from a rank on that
// differs by place, as the switch may, and rounds once; a store writes to all.
class StandInMulticast {
 public:
  static constexpr bool kExists = true;

  __device__ StandInMulticast(const MultimemParams& memory, int world_size)
      : memory_(memory), world_size_(world_size) {}

  template <Dtype dtype, ReduceOp op>
  __device__ Unit pull(const std::byte* address) const {
    const auto offset = static_cast<std::uint64_t>(address - memory_.input_multicast);
    check(address, offset);
    const ReduceFacts facts{nullptr, false, 0, world_size_};
    const auto first = static_cast<int>(offset / kUnitBytes % 61);
    UnitSum<PlainSum<ElementRule<dtype, op>>> sum;
    for (int i = 0; i < world_size_; ++i) {
      const int rank = (first + i) % world_size_;
      sum.add(load_unit(memory_.inputs[rank] + offset, kUnitBytes), facts, i);
    }
    return sum.finish(facts);
  }

  __device__ void push(std::byte* address, const Unit& unit) const {
    const auto offset = static_cast<std::uint64_t>(address - memory_.output_multicast);
    check(address, offset);
    for (int rank = 0; rank < world_size_; ++rank) {
      store_unit(memory_.outputs[rank] + offset, unit, kUnitBytes);
    }
  }

 private:
  __device__ static void check(const std::byte* address, std::uint64_t offset) {
    constexpr std::uint64_t kBefore = std::uint64_t{1} << 40;
    if (!is_aligned(address, kUnitBytes) || offset >= kBefore) atomicAdd(&forbidden_accesses, 1u);
  }

  const MultimemParams& memory_;
  const int world_size_;
};

}  // namespace

const void* stand_in_kernel(CollectiveKind kind, Dtype dtype, ReduceOp op) {
  return multimem_kernel_of<StandInMulticast>(kind, dtype, op);
}

unsigned take_forbidden_accesses() {
  unsigned count = 0;
  const unsigned none = 0;
  check_gpu(SYMM_GPU_NAME(MemcpyFromSymbol)(&count, forbidden_accesses, sizeof(count)), "reading");
  check_gpu(SYMM_GPU_NAME(MemcpyToSymbol)(forbidden_accesses, &none, sizeof(none)), "writing");
  return count;
}

}  // namespace symm::test
