// Selects the algorithm of a call from its facts.
//
// NOTE [What may decide]
// A plan follows from facts that every rank of the group shares: kind, world size, sizes, and a
// table that group rank 0 publishes at set-up. A fact of one rank (a pointer, an alignment, whether
// a tensor is symmetric) must never decide: ranks that disagree wait for each other for ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/plan_request.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// What carries a call out. Each target has algorithms, and a table, of its own.
enum class PlanTarget : std::uint8_t { kHost, kGpu };

// How one call is carried out.
struct Plan {
  Algorithm algorithm = Algorithm::kOneShot;
  std::size_t chunk_bytes = 0;  // of the host: bytes that a step puts in a slot at most
  int channels = 0;             // of a GPU: blocks of a kernel

  bool operator==(const Plan&) const = default;
};

// True where `kind` can be carried out by `algorithm` on `target` (kAuto never can).
bool has_algorithm(CollectiveKind kind, Algorithm algorithm, PlanTarget target);

// "one_shot, two_shot, ring": the algorithms of `kind`, for messages.
std::string algorithm_list(CollectiveKind kind, PlanTarget target);

// True where an algorithm of the host stages through the group's workspace, false where it uses the
// small slots.
constexpr bool uses_workspace(Algorithm algorithm) { return algorithm != Algorithm::kOneShot; }

// One row of the table: messages of `kind` among min_world..max_world ranks whose staged bytes are
// at most max_bytes (and more than those of the row before).
struct PlanRow {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  CollectiveKind kind;
  int min_world;
  int max_world;
  std::uint64_t max_bytes;
  Algorithm algorithm;
  std::size_t chunk_bytes;
  int channels = 0;  // as in Plan

  bool operator==(const PlanRow&) const = default;
};

// Bytes that one rank stages in a call, the unit of max_bytes: the message for all_reduce, reduce
// and broadcast; one share for all_gather and gather; all shares for scatter, reduce_scatter and
// all_to_all. `largest_share`: the message or the largest share, in bytes.
std::uint64_t staged_bytes(CollectiveKind kind, int world_size, std::uint64_t largest_share);

// The rows of one target.
//
// NOTE [Copy engines]
// They need the peers' addresses on the host, which only symmetric registration makes a fact that
// all ranks share, so no row names them: calls on registered memory use them for shares of
// copy_engine_bytes() and more, and the call's record shows it to the peers.
//
// NOTE [Choosing multimem]
// It needs symmetric registration and a multicast address, and for reductions that the ranks waived
// the same bits. It has never been run on hardware, so no row of the compiled table names it: it is
// used where a caller, an option or a row of a tuning file names it, and a call that it cannot
// carry out is then refused with the reason (multimem.hpp).
class PlanTable {
 public:
  // The compiled tables (plan_table.cpp).
  static const PlanTable& built_in();
  static const PlanTable& built_in_gpu(WireKind wire);

  // Throws Error(kInvalidArgument) unless rows of each collective cover every world size and every
  // number of bytes once: no gap, no overlap, only algorithms that the collective has on `target`,
  // chunks and no channels on the host, channels and no chunks on a GPU.
  PlanTable(PlanTarget target, std::vector<PlanRow> rows,
            std::uint64_t copy_engine_bytes = PlanRow::kNoLimit);

  PlanTarget target() const { return target_; }
  const std::vector<PlanRow>& rows() const { return rows_; }
  // Bytes for one peer from which copy engines carry out a call on memory with symmetric
  // registration.
  std::uint64_t copy_engine_bytes() const { return copy_engine_bytes_; }
  bool operator==(const PlanTable&) const = default;

  // The plan of a call; `forced` (not kAuto) overrides the row's algorithm where the kind has it,
  // except kCopyEngine (NOTE [Copy engines]). `request` precedes `forced` and has passed
  // check_request(). Local, thread safe, allocates nothing. world_size >= 2.
  Plan select(CollectiveKind kind, int world_size, std::uint64_t staged, Algorithm forced,
              const PlanRequest& request = {}) const;

 private:
  PlanTarget target_;
  std::vector<PlanRow> rows_;  // by kind, world range, ascending max_bytes
  std::array<std::size_t, kCollectiveKindCount + 1> first_{};  // row of each kind, and the end
  std::uint64_t copy_engine_bytes_;
};

// The tables of all targets: the content of a tuning file, equal on all ranks of a group.
struct PlanTables {
  PlanTable host = PlanTable::built_in();
  PlanTable gpu = PlanTable::built_in_gpu(WireKind::kLL);  // of groups whose wire is ll
  PlanTable gpu_line = PlanTable::built_in_gpu(WireKind::kLine);

  const PlanTable& gpu_of(WireKind wire) const { return wire == WireKind::kLL ? gpu : gpu_line; }

  // Parses {"rows": [...], "gpu_rows": [...], "gpu_line_rows": [...], "copy_engine_bytes": n}, of
  // which at least one must be there. A row is {"collective", "min_world", "max_world", "max_bytes"
  // (null: no limit), "algorithm", and "chunk_bytes" or, of a GPU, "channels"}. Collectives that
  // are named replace all their built-in rows; gpu_rows are for both wires, and gpu_line_rows
  // replace them where the wire is line. `source` names the text in messages. Throws
  // Error(kInvalidArgument).
  static PlanTables from_json(std::string_view text, std::string_view source);

  std::string to_json() const;
  bool operator==(const PlanTables&) const = default;
};

}  // namespace symm
