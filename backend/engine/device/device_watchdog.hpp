// Looks after a group's calls on a device (NOTE [Failure on a device]): a task of the group's
// watchdog.
//
// It reads the pages and records of all ranks, which are host memory, and asks the mesh who has
// hung up. It is done with the group's first failure, whoever has found it; the failure has then
// set the abort word (LocalGroup::set_abort_word), upon which this rank's kernels leave.
#pragma once

#include <string>

#include "backend/engine/device/device_messages.hpp"
#include "backend/engine/device/device_trace.hpp"
#include "backend/engine/group/message_notes.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/group/watchdog.hpp"

namespace symm {

class DeviceWatchdog final : public WatchdogTask {
 public:
  // References must outlive the object.
  DeviceWatchdog(LocalGroup& group, DeviceTrace& trace, const DeviceMessages& messages,
                 MessageComparison& comparison);
  ~DeviceWatchdog() override { stop(); }

  void stop() { group_.watchdog().remove(*this); }

  void look(bool at_connections) override;

 private:
  // False where a peer has failed, and this group with it; so is check_connections().
  bool hear_peers();
  bool check_connections();
  std::string loss_without(int peer, const Error& reason) const;
  Error error_of(const DevicePage::Report& report) const;

  LocalGroup& group_;
  DeviceTrace& trace_;
  const DeviceMessages& messages_;
  MessageComparison& comparison_;
};

}  // namespace symm
