// The order of signals on a GPU across streams.
//
// Two operations on one channel of a pad that run at once would take each other's signals. So each
// is put behind the one before it on its channel, by an event that is recorded right behind that
// one: what else the other stream has to do is not waited for. The host's order of calls is the
// order, which must be the same on every rank. Channels are independent.
//
// Captured operations are ordered among those of their capture: an event from outside cannot be
// waited for inside, nor the other way round. A graph's place is where the program replays it.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

namespace symm {

// Of one allocation in one group. Thread safe. The events belong to the device; in a forked child
// leave it alone.
class ChannelOrder {
 public:
  // Calls `launch`, which puts an operation on `stream`. `capture`: of the stream, a number that
  // differs between captures, 0 where it is not captured. What `launch` throws goes on, and the
  // operation does not count.
  void run(const c10::Stream& stream, std::uint64_t capture, int channel,
           const std::function<void()>& launch);

 private:
  struct Use {
    c10::Stream stream;
    std::uint64_t capture;
    c10::Event done;
  };
  // The last use of a channel outside of captures, and in one.
  using Uses = std::array<std::optional<Use>, 2>;

  std::mutex mutex_;
  std::map<int, Uses> channels_;
};

}  // namespace symm
