// The multicast object of a segment: agreed by all ranks, or had by none.
//
// NOTE [Multicast agreement]
// With its descriptor for a rendezvous every rank says what stands in the way of multicast on its
// side. If anything does on any rank, that is all: no rank asks its driver for an object. Else rank
// 0 creates and exports one; the others import it and all add their GPU; all bind and map. After
// each of the three steps every rank tells all others whether it went well, so that a step is
// entered by all or by none, and one rank's failure makes every rank drop what it has. Failing is
// no error of the rendezvous: the reasons of the ranks are kept and raised where somebody asks for
// the pointer.
//
// Never run on hardware: this is tested against a stand-in for the driver alone.
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

// What a rank says of itself before anything is made.
struct MulticastCapability {
  std::string problem;  // "" where nothing stands in the way
  std::array<std::uint8_t, 16> gpu{};

  // Of a rank that brings `bytes` bytes to a group of `world_size`. Local.
  static MulticastCapability of(DeviceRuntime& runtime, std::size_t bytes, int world_size);

  void write(ByteWriter& writer) const;
  // Hostile input.
  static MulticastCapability read(ByteReader& reader);
};

// Why a group whose ranks say `capabilities` has no multicast object, "" where it can try to make
// one. The same text on every rank that has the same capabilities.
std::string multicast_obstacle(std::span<const MulticastCapability> capabilities);

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
