// Finds out that ranks of different hosts have made different calls, where that keeps them waiting.
//
// NOTE [Late calls]
// Messages between hosts match where both ends make the same call, and a comparison before them
// would cost a call of some megabytes a fifth of its time (docs/many_hosts.md). So nothing is
// compared as long as calls come to their end. A rank whose call has taken kLateCall writes a note
// of it to the group's store, one as its host's and one as its own, and reads those of the hosts: a
// note of the same number and other content is a different call. Of the rank that it waits for it
// reads its own note, which has the sizes of an all_to_all's shares, that only the two ranks of a
// pair know. It looks again in growing intervals. A rank whose part of the call waited for nobody
// is found where it waits in a later one: seen there in several looks, it has gone on.
//
// All that is done by a thread of its own, as a store may block, also for ever. Who finds a
// difference ends the engine, which the others see as a lost peer; each then asks its thread to
// look once more, and waits kLastLook for what it finds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/hosts/call_note.hpp"
#include "backend/engine/hosts/host_layout.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/bootstrap/store.hpp"

namespace symm {

inline constexpr std::chrono::milliseconds kLateCall{250};
inline constexpr std::chrono::milliseconds kLastLook{500};

// Of one rank; a call at a time.
class CallWatch {
 public:
  struct Config {
    std::shared_ptr<KeyValueStore> store;  // for this alone; used by another thread
    HostLayout layout;
    int rank = 0;  // group rank
    RankNames names;
  };
  // Before the ranks of a group have met: what one of an earlier group over that store, under the
  // same name, has written is no note of a call. Local.
  static void clear(KeyValueStore& store, const HostLayout& layout, int rank);

  // `failed` says what has become of the ranks of this host, of which a rank that waits for another
  // host hears nothing else; `found` gets that or the difference. Both are called by the thread,
  // during a call.
  using Failed = std::function<std::optional<Error>()>;
  using Found = std::function<void(const Error& what)>;
  CallWatch(Config config, Failed failed, Found found);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // A call begins. `args`: of an all_to_all its parts are kept.
  void begin(const CollectiveArgs& args, const CallNote& note);
  // It has ended, well or not; found() is not running any more.
  void end();
  // To be set to the peer that is waited for; as long as this object.
  std::atomic<int>& awaited();

  // Of the call in progress: the failure that was found; where it was late what is different, found
  // before or now.
  std::optional<Error> difference();

 private:
  class Notes;
  struct State;
  const std::shared_ptr<State> state_;  // also of the thread, which may outlive this object
};

}  // namespace symm
