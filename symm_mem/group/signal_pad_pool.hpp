// The signal pads of one group: many in a segment, taken again once no rank uses them any more.
//
// NOTE [Pad segments]
// A pad has some KiB, and a GPU allocates 2 MiB at least. So pads are apart from buffers: they lie
// side by side in pad segments of the group, and a buffer of whole granules takes these granules
// and no more. The pads of one allocation are at one offset of the ranks' pad segments.
//
// NOTE [Pads that are free]
// Ranks let go of an allocation at different times, and a pad may be taken again only when the last
// has done so. No rank keeps record of that: in the metadata exchange of a rendezvous each sends
// the pads that it does not use, and the ranks take the first that all have sent. Where there is
// none the group makes one more pad segment, which has the number of that exchange; a segment that
// some ranks lack, after a rendezvous that has failed on them alone, is sent by the others in vain.
// The owner of a pad that was used before clears it before the status exchange, thus before any
// peer has the pad's address.
//
// All members are local. A rank that gives its last reference to a pad away on any thread frees it;
// else one thread at a time, which holds the group's order (LocalGroup::hold).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "symm_mem/segment/segment.hpp"

namespace symm {

class SignalPadPool {
 public:
  struct Pad {
    std::shared_ptr<Segment> segment;  // this rank uses the pad for as long as this is held
    std::size_t offset = 0;            // of the pad in every rank's part of `segment`
    bool used_before = false;          // it may hold signals that nobody has taken
  };

  // What to allocate on every rank for a new pad segment. The same where granularities are.
  static std::size_t segment_bytes(const DeviceRuntime& runtime, std::size_t pad_bytes);

  // The pads of `pad_bytes` on this device that this rank does not use, in at most `most` words.
  std::vector<std::uint64_t> unused(const DeviceRuntime& runtime, std::size_t pad_bytes,
                                    std::size_t most) const;

  // The first pad that is in every rank's words of unused(), this rank's among them; nullopt where
  // there is none. `words` by rank: all ranks that have the same words take the same pad.
  std::optional<Pad> take(std::span<const std::span<const std::uint64_t>> words);

  // Adds a pad segment of segment_bytes() zeros and takes its first pad. `number` is the same on
  // every rank, and no other segment's.
  Pad add(std::uint64_t number, std::shared_ptr<Segment> segment, std::size_t pad_bytes);

 private:
  struct Use {
    std::weak_ptr<Segment> by;  // expired: by nobody here
    bool before = false;
  };
  struct PadSegment {
    std::uint64_t number;
    std::shared_ptr<Segment> segment;
    std::size_t stride;  // from pad to pad
    std::vector<Use> uses;
  };

  static Pad take(PadSegment& from, std::size_t index);

  std::vector<PadSegment> segments_;
};

}  // namespace symm
