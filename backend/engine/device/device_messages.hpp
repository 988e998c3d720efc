// The messages that this rank has put on streams, by peer. A device knows a message only by its
// number; this names it in errors, and says whether it has ended.
//
// Thread safety: every member may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "backend/engine/device/device_trace.hpp"
#include "backend/engine/record/flight_record.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

class DeviceMessages {
 public:
  // References must outlive the object.
  DeviceMessages(const LocalGroup& group, const DeviceTrace& trace)
      : group_(group), trace_(trace), peers_(static_cast<std::size_t>(group.world_size())) {}

  void note(const TransferOp& op);

  // Where the device counts the last message of the peer, tag channel and direction of `op`.
  DeviceProgress progress(const TransferOp& op) const;

  // True where every message of this rank that was put on a stream has ended; of use as long as no
  // stream was captured.
  bool all_ended() const;

  // Names the first message with `peer` that this rank's device has begun and not ended and that
  // the peer's has not ended either, hence will not end without the peer; "" where there is none.
  std::string needing(int peer) const;

  // "recv from rank 1 (message 3 of its tag channel, tag 7, 4000 bytes)": the message with `peer`
  // that the device calls number `number`.
  std::string name(int peer, std::uint64_t number) const;

 private:
  static constexpr std::uint64_t kNotes = 16;
  struct Direction {
    std::uint64_t count = 0;
    std::array<TransferOp, kNotes> last{};  // message n at n % kNotes
  };
  using TagChannels =
      std::array<std::array<Direction, 2>, kTagChannels>;  // [..][0] send, [..][1] recv

  std::string describe(int peer, int tag_channel, int direction, std::uint64_t number) const;

  const LocalGroup& group_;
  const DeviceTrace& trace_;
  mutable std::mutex mutex_;
  std::vector<TagChannels> peers_;
};

}  // namespace symm
