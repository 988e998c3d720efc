// The thread that looks after a group's calls on a device (NOTE [Failure on a device]).
//
// It calls no function of the device: it reads the pages and records of all ranks, which are host
// memory, and asks the mesh who has hung up. So it never disturbs a stream, a capture, or a device
// that is stuck. It ends with the group's first failure, whoever has found it; the failure has then
// set the abort word (GroupHealth::set_abort_word), upon which this rank's kernels leave.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "backend/engine/device/device_calls.hpp"
#include "backend/engine/device/device_messages.hpp"
#include "backend/engine/group/group_health.hpp"

namespace symm {

class DeviceWatch {
 public:
  // Starts watching. References must outlive the object.
  DeviceWatch(int rank, int world_size, DeviceCallBoard& board, const DeviceMessages& messages,
              GroupHealth& health);
  ~DeviceWatch();

  // Ends the thread. Idempotent, any thread but the watching one.
  void stop();

 private:
  void run();
  bool look(bool at_connections);
  bool check_connections(const std::string& call);
  std::string loss_without(int peer, const Error& reason) const;
  Error error_of(const DevicePage::Report& report) const;
  std::string name_of(const DevicePage::Report& report) const;

  const int rank_;
  const int world_size_;
  DeviceCallBoard& board_;
  const DeviceMessages& messages_;
  GroupHealth& health_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace symm
