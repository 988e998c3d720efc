// The symmetric memory of one group: control regions and mailboxes from its start, the workspace
// from the first call that needs it, and user segments that have joined.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cpu/host_collectives.hpp"
#include "kernels/protocol/mailbox.hpp"
#include "kernels/protocol/symm_view.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

class GroupMemory : public SlotProvider {
 public:
  // How a collective set-up waits: it ends when give_up() says so or the time-out passes.
  struct Patience {
    std::chrono::milliseconds timeout;
    std::function<bool()> give_up;
  };

  // Collective over the mesh. workspace_bytes is the same on every rank.
  GroupMemory(PeerMesh& mesh, std::size_t workspace_bytes, const Patience& patience);

  ControlRegion& control(int rank) const { return *controls_[static_cast<std::size_t>(rank)]; }
  std::byte* mailboxes(int rank) const { return control_->base(rank) + sizeof(ControlRegion); }
  const MailboxLayout& mailbox_layout() const { return layout_; }

  // A view whose slots are the small ones.
  SymmView view() const;

  Slots small() override;
  // Collective on first use, with the patience last set.
  Slots workspace() override;
  void set_patience(Patience patience) { patience_ = std::move(patience); }

  // Collective: makes a segment of the group.
  std::shared_ptr<Segment> make_segment(std::shared_ptr<LocalSegment> local);
  // Gives `segment` the first free number, and gives it back. Every rank does the same in the same
  // order, so segments are numbered alike.
  void add_segment(std::shared_ptr<Segment> segment);
  void remove_segment(const std::shared_ptr<Segment>& segment);

  // Where [data, data + bytes) of this rank stands in a segment of the group.
  struct Place {
    std::uint32_t segment;  // 1 + number, as in CallRecord
    std::uint64_t offset;
  };
  std::optional<Place> find(const void* data, std::size_t bytes) const;
  const std::byte* resolve(int peer, std::uint32_t segment, std::uint64_t offset) const;

 private:
  std::shared_ptr<Segment> exchange(std::shared_ptr<LocalSegment> local);

  PeerMesh& mesh_;
  std::size_t workspace_bytes_;
  MailboxLayout layout_;
  Patience patience_;
  std::uint64_t exchanges_ = 0;
  std::shared_ptr<Segment> control_;
  std::vector<ControlRegion*> controls_;
  std::vector<std::byte*> small_slots_;
  std::shared_ptr<Segment> workspace_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by number; null where it is free
};

}  // namespace symm
