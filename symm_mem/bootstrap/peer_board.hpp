// What the ranks of one group publish for each other in the Store: one record a rank.
//
// NOTE [Tries and their records]
// A Store outlives groups and processes: a group is made again under its old name, a set-up that
// failed is tried again, a launcher starts killed ranks anew over the Store that it has kept. So a
// key may hold the record of an earlier try, and a round of tries sees old and new ones mixed.
// - A record is joining while its rank sets the group up, and over before that rank stops
//   listening, except where it knows of a failure other than lateness. A rank whose record is over,
//   or that has none, is waited for.
// - Whoever cannot reach a rank that is joining reads its record again: it is then newer, or over,
//   unless its process was killed or gave up for good.
// - A record that still stands was published in this try, or in an earlier one: earlier than this
//   process started (which is known to 10 ms), or than its own last failed try of this group ended.
//   Of this try, its rank is lost. An earlier one is left over, and its rank is waited for.
// Only a rank that dies in set-up before another one has started, and is not started again, is so
// missed at the time-out alone.
//
// NOTE [One job a key]
// The record that is over says which process had the rank. While that runs, only processes that it
// has been in a group with may take its place, so that two jobs with one Store and prefix do not
// become one group: the one that comes second is refused. Where processes do not see each other
// (pid namespaces) only a record that is overwritten during set-up is noticed.
//
// Local but where it says so; not thread safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

class PeerBoard {
 public:
  // `store` and `config` must stay valid.
  PeerBoard(KeyValueStore& store, const BootstrapMeshConfig& config);

  // Publishes this rank's record. Throws Error(kSecurity) where another job uses the key.
  void publish(const std::string& socket_path);

  // Waits until every rank is joining; by rank, this one included. Every rank reads all records
  // before it connects, so all throw the same: kTimeout naming the ranks that did not come,
  // kSecurity and kMismatch for a record that cannot be right, kUnsupported for one of another
  // host.
  std::vector<PeerRecord> collect(const Deadline& deadline);

  // What `rank` has published, nullopt where it is not joining. Throws as collect().
  std::optional<PeerRecord> read(int rank);

  // Throws where ranks are on different hosts (kUnsupported) or of different users (kSecurity).
  void check_peers(const std::vector<PeerRecord>& records) const;

  const RankNames& names() const { return config_.names; }

  // When this rank published its record, as PeerRecord::published.
  std::uint64_t own_time() const { return own_.published; }

  // Whether this record, that nobody listens for, may be of an earlier try.
  bool is_left_over(const PeerRecord& record) const;

  // Throws Error(kSecurity) where the Store no longer holds this rank's record.
  void check_own();

  // The try is over, as all `records` are connected or because of `error`. Do this before the rank
  // stops listening.
  void joined(const std::vector<PeerRecord>& records);
  void failed(const Error& error) noexcept;

  // Throws where whoever set this up has a reason to give up (BootstrapMeshConfig::look).
  void look() const {
    if (config_.look) config_.look();
  }

 private:
  Error of_group(const Error& error) const;  // the same, with the group and this rank
  void put(const PeerRecord& record);        // under this rank's key
  std::optional<std::vector<std::uint8_t>> stored(int rank) const;
  std::optional<PeerRecord> await(int rank, const Deadline& deadline);
  void check_key_is_free(const PeerRecord& holder) const;
  bool holds_own();
  [[noreturn]] void throw_overwritten() const;
  void end_own();

  KeyValueStore& store_;
  const BootstrapMeshConfig& config_;
  const std::string prefix_;
  PeerRecord own_;
  bool published_ = false;
  std::chrono::nanoseconds begin_;  // records from before it may be left over
};

}  // namespace symm
