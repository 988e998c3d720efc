#include "symm_mem/c10d/cpu_tensor_pool.hpp"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/core/platform.hpp"
#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

namespace {

struct Block {
  std::byte* base;
  std::size_t bytes;
  std::uint32_t fork_generation;
};

class Blocks {
 public:
  explicit Blocks(std::uint32_t generation) : fork_generation(generation) {}

  const std::uint32_t fork_generation;

  Block take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      // The one that was freed last is the likeliest to be in a cache.
      const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                      [&](const Block& block) { return block.bytes == bytes; });
      if (found != kept_.rend()) {
        const Block block = *found;
        kept_.erase(std::next(found).base());
        statistics_.kept_bytes -= bytes;
        statistics_.used_bytes += bytes;
        return block;
      }
    }
    const Block made{allocate(bytes, at::kCPU, std::nullopt)->base(), bytes, fork_generation};
    const std::lock_guard lock(mutex_);
    statistics_.used_bytes += bytes;
    return made;
  }

  void give_back(const Block& block) {
    std::vector<Block> gone;  // freed outside the lock
    {
      const std::lock_guard lock(mutex_);
      statistics_.used_bytes -= block.bytes;
      if (find_allocation(block.base)->has_joined_a_group()) {
        gone.push_back(block);
      } else {
        kept_.push_back(block);
        statistics_.kept_bytes += block.bytes;
      }
      while (statistics_.kept_bytes > kMostKeptBytes) {
        statistics_.kept_bytes -= kept_.front().bytes;
        gone.push_back(kept_.front());
        kept_.pop_front();
      }
    }
    for (const Block& one : gone) free_allocation(one.base);
  }

  CpuTensorPoolStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  std::mutex mutex_;        // guards what follows
  std::deque<Block> kept_;  // the one that was freed first is in front
  CpuTensorPoolStatistics statistics_;
};

std::atomic<Blocks*> current_blocks{nullptr};

// Never destroyed: a tensor may outlive every static of the program. A forked child gets its own,
// and leaves alone what its parent keeps and what it locks.
Blocks& blocks() {
  const std::uint32_t generation = fork_generation();
  Blocks* found = current_blocks.load(std::memory_order_acquire);
  if (found && found->fork_generation == generation) return *found;
  auto fresh = std::make_unique<Blocks>(generation);
  if (current_blocks.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) {
    return *fresh.release();
  }
  return *found;
}

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (block->fork_generation == fork_generation()) {
    blocks().give_back(*block);
  } else {
    free_allocation(block->base);  // the parent's memory stays there for the parent
  }
}

class CpuTensorPool final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return with_torch_errors([&] {
      if (bytes > std::numeric_limits<std::int64_t>::max()) {
        throw Error(ErrorCode::kInvalidArgument, "allocate: expected a size below 2^63 bytes, got ",
                    bytes);
      }
      const std::size_t rounded = align_up(std::max<std::size_t>(bytes, 1), kPoolGranule);
      auto block = std::make_unique<Block>(blocks().take(rounded));
      std::byte* const base = block->base;
      return c10::DataPtr(base, block.release(), &symm::give_back, at::kCPU);
    });
  }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }
};

void check_request(std::int64_t count, const at::TensorOptions& options) {
  constexpr auto* op = "allocateTensor";
  const std::size_t element = options.dtype().itemsize();
  const auto most = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(element);
  if (count < 0 || count > most) {
    throw Error(ErrorCode::kInvalidArgument, op, ": size: expected 0 to ", most, " elements, got ",
                count);
  }
  if (!options.device().is_cpu()) {
    throw Error(ErrorCode::kUnsupported, op, ": device: expected cpu, got ", options.device().str(),
                "; on a GPU torch_symm.empty and torch_symm.mem_pool allocate symmetric memory");
  }
  if (options.pinned_memory() || options.layout() != at::kStrided) {
    throw Error(ErrorCode::kUnsupported, op,
                ": options: expected a strided tensor in memory that is not pinned");
  }
}

}  // namespace

c10::Allocator& cpu_tensor_pool() {
  static auto* const instance = new CpuTensorPool;
  return *instance;
}

at::Tensor allocate_cpu_tensor(std::int64_t count, const at::TensorOptions& options) {
  check_request(count, options);
  return at::detail::empty_generic({count}, &cpu_tensor_pool(),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   options.dtype().toScalarType(), std::nullopt);
}

CpuTensorPoolStatistics cpu_tensor_pool_statistics() { return blocks().statistics(); }

}  // namespace symm
