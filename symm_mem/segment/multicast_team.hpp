// The multicast object of a segment. All ranks have it, or none has.
//
// NOTE [Making a multicast object]
// Every rank puts its multicast capability into the descriptor that it posts for a rendezvous. If
// any rank lacks it, no rank asks its driver for an object. Otherwise there are three steps: rank 0
// creates and exports the object; the others import it and all add their GPU; all bind and map. A
// status exchange follows each step, so all ranks enter the next one or none does, and one rank's
// failure makes every rank destroy what it has. Such a failure is no error of the rendezvous: the
// ranks' reasons are kept, and raised by base().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/device/multicast_object.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {

// Why memory of `runtime` cannot have a multicast pointer whatever the group, "" where it can. It
// names the variable where multicast is switched off. Local, thread safe; does not throw for an
// answer of no.
std::string multicast_problem(DeviceRuntime& runtime);

// Whether a rank can take part in a multicast object, exchanged before anything is made.
struct MulticastCapability {
  std::string problem;  // "" where it can
  std::array<std::uint8_t, 16> gpu{};

  // Of a rank that brings `bytes` bytes to a group of `world_size`. Local.
  static MulticastCapability of(DeviceRuntime& runtime, std::size_t bytes, int world_size);

  void write(ByteWriter& writer) const;
  // Hostile input.
  static MulticastCapability read(ByteReader& reader);
};

// Why a group whose ranks have `capabilities` has no multicast object, "" where it can try to make
// one. The same text on every rank that has the same capabilities.
std::string multicast_obstacle(std::span<const MulticastCapability> capabilities,
                               const RankNames& names = {});

class Multicast {
 public:
  // None, for the reason given.
  explicit Multicast(std::string why_not) : why_not_(std::move(why_not)) {}

  // Collective over the round's mesh: every rank brings `memory` of the same size, and the same
  // `capabilities` and `kind`. Makes nothing and exchanges nothing where multicast_obstacle() is
  // not empty. Throws Error only where an exchange does.
  static Multicast agree(const MeshRound& round, std::span<const MulticastCapability> capabilities,
                         DeviceRuntime& runtime, const std::shared_ptr<PhysicalMemory>& memory,
                         HandleKind kind);

  bool available() const { return base_ != nullptr; }
  // "" where it is available; else the reasons of the ranks.
  const std::string& why_not() const { return why_not_; }
  // Start of all ranks' buffers at once, in device memory, valid for as long as this lives. Using
  // it is an error once any rank has let go of its own. Throws Error(kUnsupported) with why_not()
  // where there is none.
  std::byte* base() const;

 private:
  Multicast(std::unique_ptr<MulticastObject> object, std::byte* base)
      : object_(std::move(object)), base_(base) {}

  std::unique_ptr<MulticastObject> object_;
  std::byte* base_ = nullptr;
  std::string why_not_;
};

}  // namespace symm
