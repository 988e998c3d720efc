#include "backend/engine/group/group_memory.hpp"

#include <algorithm>

namespace symm {

GroupMemory::GroupMemory(PeerMesh& mesh, std::size_t workspace_bytes, const Patience& patience)
    : mesh_(mesh),
      workspace_bytes_(workspace_bytes),
      layout_(mesh.world_size()),
      patience_(patience) {
  control_ =
      exchange(LocalSegment::allocate(host_runtime(), sizeof(ControlRegion) + layout_.bytes()));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    auto* control = reinterpret_cast<ControlRegion*>(control_->base(rank));
    controls_.push_back(control);
    small_slots_.push_back(control->small_slots[0]);
  }
}

std::shared_ptr<Segment> GroupMemory::exchange(std::shared_ptr<LocalSegment> local) {
  return Segment::rendezvous(mesh_, std::move(local), ++exchanges_, patience_.timeout,
                             patience_.give_up);
}

SymmView GroupMemory::view() const {
  return SymmView{.rank = mesh_.rank(),
                  .world_size = mesh_.world_size(),
                  .controls = controls_.data(),
                  .slots = small_slots_.data(),
                  .slot_bytes = kSmallSlotBytes};
}

SlotProvider::Slots GroupMemory::small() { return {small_slots_.data(), kSmallSlotBytes}; }

SlotProvider::Slots GroupMemory::workspace() {
  if (workspace_ == nullptr) {
    workspace_ = exchange(LocalSegment::allocate(host_runtime(), workspace_bytes_));
  }
  return {workspace_->bases(), workspace_bytes_ / kSlots};
}

std::shared_ptr<Segment> GroupMemory::make_segment(std::shared_ptr<LocalSegment> local) {
  return exchange(std::move(local));
}

void GroupMemory::add_segment(std::shared_ptr<Segment> segment) {
  const auto free = std::find(segments_.begin(), segments_.end(), nullptr);
  if (free == segments_.end()) {
    segments_.push_back(std::move(segment));
  } else {
    *free = std::move(segment);
  }
}

void GroupMemory::remove_segment(const std::shared_ptr<Segment>& segment) {
  std::replace(segments_.begin(), segments_.end(), segment, std::shared_ptr<Segment>());
}

std::optional<GroupMemory::Place> GroupMemory::find(const void* data, std::size_t bytes) const {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i]) continue;
    const LocalSegment& local = *segments_[i]->local();
    if (!local.contains(data, bytes)) continue;
    const auto offset =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - local.base());
    return Place{static_cast<std::uint32_t>(i + 1), offset};
  }
  return std::nullopt;
}

const std::byte* GroupMemory::resolve(int peer, std::uint32_t segment, std::uint64_t offset) const {
  return segments_[segment - 1]->base(peer) + offset;
}

}  // namespace symm
