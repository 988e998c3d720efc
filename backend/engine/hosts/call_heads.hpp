// The first messages of a call over hosts, all of one size, so that ranks with different calls do
// not give the engine messages that do not fit.
//
// NOTE [Heads]
// Ranks of different hosts that exchange anything in a call first exchange heads, both ways: a note
// of the call and room for data. A small call needs no other message; a larger one goes on when the
// notes agree: its messages may be sent before, as nobody asks for one whose sender has not made
// the same call. The leaders of the hosts exchange heads in every call, so that any two different
// calls meet somewhere; inside a host call_hash() does the same. Having a peer's head, a rank knows
// that the peer has begun the call.
//
// Where the messages of calls are ordered by a stream of a GPU, reading a head would make the CPU
// wait for it: there are none then, and what the hosts call is not compared. Heads beside messages
// in memory of a GPU have no room for data.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backend/engine/hosts/call_note.hpp"
#include "backend/engine/hosts/host_legs.hpp"

namespace symm {

inline constexpr std::size_t kHeadBytes = std::size_t{8} << 10;
inline constexpr std::size_t kHeadRoom = kHeadBytes - sizeof(CallNote);

// How many bytes of data a head has room for.
inline std::size_t head_room(const HostLegs& legs) { return legs.is_on_cpu() ? kHeadRoom : 0; }

class CallHeads {
 public:
  // `peers`: group ranks of other hosts, each of which names this one.
  CallHeads(HostLegs& legs, const CollectiveArgs& args, std::uint64_t sequence,
            std::vector<int> peers);

  const std::vector<int>& peers() const { return peers_; }
  // What goes to, and what has come from, the peer at that index: head_room() bytes.
  std::byte* room_to(std::size_t index) { return to_ + index * kHeadBytes + sizeof(CallNote); }
  const std::byte* room_from(std::size_t index) const {
    return from_ + index * kHeadBytes + sizeof(CallNote);
  }

  // Fill the rooms first. Does not wait. Both do nothing where there are no heads.
  void start();
  // Throws kMismatch where a peer has made another call. Does nothing the second time.
  void finish();
  // Starts messages of the call and does `meanwhile`, a local leg. With heads asks for `from`
  // behind finish() alone, and on the CPU sends `to` before; without them there is nothing to wait
  // for.
  HostExchange exchange(
      Messages to, Messages from, const std::function<void()>& meanwhile = [] {});

 private:
  HostLegs& legs_;
  const CollectiveArgs& args_;
  const std::uint64_t sequence_;
  const std::vector<int> peers_;
  std::byte* to_ = nullptr;
  std::byte* from_ = nullptr;
  std::unique_ptr<HostTransfer> transfer_;
  bool finished_ = false;
};

}  // namespace symm
