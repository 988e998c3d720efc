// The memory of one group's collectives on the host: control regions and mailboxes from its start,
// the workspace from the first call that needs it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cpu/host_collectives.hpp"
#include "kernels/protocol/mailbox.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

class GroupMemory : public SlotProvider {
 public:
  // How a collective set-up waits: it ends when give_up() says so or the time-out passes.
  struct Patience {
    std::chrono::milliseconds timeout;
    std::function<bool()> give_up;
  };

  // What a rank's region of the LocalGroup must hold.
  static std::size_t region_bytes(int world_size);

  // Local. `group` has such regions and outlives the object; workspace_bytes is the same on every
  // rank.
  GroupMemory(const LocalGroup& group, std::size_t workspace_bytes, Patience patience);

  ControlRegion& control(int rank) const { return *controls_[static_cast<std::size_t>(rank)]; }
  std::byte* mailboxes(int rank) const { return group_.region(rank) + sizeof(ControlRegion); }
  const MailboxLayout& mailbox_layout() const { return layout_; }

  // A view whose slots are the small ones.
  SymmView view() const;

  Slots small() override;
  // Collective on first use, with the given patience.
  Slots workspace() override;
  // This rank's; 0 until it was made for the first time. Any thread.
  std::size_t made_workspace_bytes() const {
    return made_workspace_bytes_.load(std::memory_order_relaxed);
  }

  // Lets go of the workspace, which no call uses. Local.
  void release_workspace() { workspace_.reset(); }
  // This rank's part of the one that was released; null where there was none. Local.
  std::shared_ptr<LocalSegment> allocate_released() const;
  // All ranks' parts.
  void set_workspace(std::shared_ptr<Segment> workspace);

 private:
  const LocalGroup& group_;
  std::size_t workspace_bytes_;
  MailboxLayout layout_;
  Patience patience_;
  std::vector<ControlRegion*> controls_;
  std::vector<std::byte*> small_slots_;
  std::shared_ptr<Segment> workspace_;
  std::atomic<std::size_t> made_workspace_bytes_{0};
};

}  // namespace symm
