#include "symm_mem/c10d/kernel_watch.hpp"

#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/core/error.hpp"

namespace symm {
namespace {

// What word 0 says; torch_symm/triton/layout.py has the numbers too.
constexpr std::int64_t kGroupFailed = 1;
constexpr std::int64_t kRankDied = 2;

std::int64_t* data_of(const at::Tensor& words, int world_size) {
  const bool fits = words.is_cpu() && words.is_contiguous() &&
                    words.scalar_type() == at::ScalarType::Long &&
                    words.numel() >= KernelWatch::kFirstRank + world_size;
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                "words: expected contiguous int64 on the CPU, at least ",
                KernelWatch::kFirstRank + world_size, " of them, got ", words.numel());
  }
  return words.data_ptr<std::int64_t>();
}

}  // namespace

KernelWatch::KernelWatch(const std::string& group_name, at::Tensor words)
    : link_(link_of_group(group_name)),
      words_(std::move(words)),
      data_(data_of(words_, link_->peers().world_size())) {
  if (link_->peers().world_size() > 1) link_->peers().watchdog().add(*this);
}

KernelWatch::~KernelWatch() {
  LocalGroup& group = link_->peers();
  if (group.world_size() > 1 && !group.in_forked_child()) group.watchdog().remove(*this);
}

void KernelWatch::put(std::int64_t word, std::int64_t value) {
  store_release(reinterpret_cast<std::uint64_t*>(data_ + word), static_cast<std::uint64_t>(value));
}

void KernelWatch::look(bool at_connections) {
  const LocalGroup& group = link_->peers();
  if (group.failed() || group.ended_here()) {
    put(0, kGroupFailed);
    return;
  }
  if (!at_connections) return;
  std::int64_t gone = 0;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == group.rank() || !group.is_gone(rank)) continue;
    put(kFirstRank + rank, 1);
    put(1, ++gone);
    if (!group.has_left(rank)) put(0, kRankDied);
  }
}

std::string KernelWatch::problem() const {
  const LocalGroup& group = link_->peers();
  if (group.failed()) return group.failure().what();
  if (group.ended_here()) return "the group has been destroyed";
  std::string names;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == group.rank() || !group.is_gone(rank)) continue;
    names += (names.empty() ? "" : ", ") + group.rank_name(rank);
  }
  return names.empty() ? "" : names + " has ended or left the group";
}

std::string KernelWatch::rank_report(int rank) const { return link_->peers().rank_report(rank); }

std::int64_t KernelWatch::timeout_ms(const at::Tensor& like) const {
  return link_->timeout(like.device().type()).count();
}

}  // namespace symm
