#include "backend/engine/group/group_memory.hpp"

#include <utility>

namespace symm {
namespace {

// In the collectives' stream; LocalGroup has used the numbers before.
constexpr std::uint64_t kWorkspaceSequence = 2;

}  // namespace

std::size_t GroupMemory::region_bytes(int world_size) {
  return sizeof(ControlRegion) + MailboxLayout(world_size).bytes();
}

GroupMemory::GroupMemory(const LocalGroup& group, std::size_t workspace_bytes, Patience patience)
    : group_(group),
      workspace_bytes_(workspace_bytes),
      layout_(group.world_size()),
      patience_(std::move(patience)) {
  for (int rank = 0; rank < group.world_size(); ++rank) {
    auto* control = reinterpret_cast<ControlRegion*>(group.region(rank));
    controls_.push_back(control);
    small_slots_.push_back(control->small_slots[0]);
  }
}

SymmView GroupMemory::view() const {
  return SymmView{.rank = group_.rank(),
                  .world_size = group_.world_size(),
                  .controls = controls_.data(),
                  .slots = small_slots_.data(),
                  .slot_bytes = kSmallSlotBytes};
}

SlotProvider::Slots GroupMemory::small() { return {small_slots_.data(), kSmallSlotBytes}; }

SlotProvider::Slots GroupMemory::workspace() {
  if (workspace_ == nullptr) {
    set_workspace(Segment::rendezvous(group_.mesh(),
                                      LocalSegment::allocate(host_runtime(), workspace_bytes_),
                                      kWorkspaceSequence, patience_.timeout, patience_.give_up));
  }
  return {workspace_->bases(), workspace_bytes_ / kSlots};
}

std::shared_ptr<LocalSegment> GroupMemory::allocate_released() const {
  if (made_workspace_bytes() == 0 || workspace_ != nullptr) return nullptr;
  return LocalSegment::allocate(host_runtime(), workspace_bytes_);
}

void GroupMemory::set_workspace(std::shared_ptr<Segment> workspace) {
  workspace_ = std::move(workspace);
  workspace_->close_handles();
  made_workspace_bytes_.store(workspace_->mapped_bytes(), std::memory_order_relaxed);
}

}  // namespace symm
