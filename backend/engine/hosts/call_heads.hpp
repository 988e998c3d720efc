// The messages of a call over hosts whose data is small: all of one size, with a note of the call.
//
// NOTE [Heads]
// The leaders of the hosts exchange heads, both ways, in each call that goes by them and whose data
// fits: a note of the call and room for the data. So any two different calls of that kind meet and
// are compared at once. Messages of larger calls have no head: those of different calls do not
// match (HostLink::start), and ranks that wait for them find out by NOTE [Late calls] in
// call_watch.hpp. Inside a host hash_of() is compared.
//
// Where messages lie in memory of a GPU a head could be read only by waiting for its stream: there
// are none then.
#pragma once

#include <cstddef>
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
  // To and from each of `peers`, each of which names this rank; the rooms are there until the
  // call's end.
  CallHeads(HostLegs& legs, const std::vector<int>& peers);

  // What goes to, and what has come from, the peer at that index: head_room() bytes.
  std::byte* room_to(std::size_t index) { return to_ + index * kHeadBytes + sizeof(CallNote); }
  const std::byte* room_from(std::size_t index) const {
    return from_ + index * kHeadBytes + sizeof(CallNote);
  }

  // Fill the rooms first. Does not wait.
  void start();
  // Throws kMismatch where a peer has made another call.
  void finish();

 private:
  HostLegs& legs_;
  const CallNote note_;
  const std::vector<int>& peers_;
  std::byte* const to_;
  std::byte* const from_;
  std::unique_ptr<HostTransfer> transfer_;
};

}  // namespace symm
