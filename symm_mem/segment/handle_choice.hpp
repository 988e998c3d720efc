// The choice of the kind of handle by which the ranks of a group pass their memory. Every rank
// makes it from the handle descriptors of all, so all make the same.
#pragma once

#include <optional>
#include <span>

#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/device/memory_handle.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {

// The handles that a rank has of its memory. The file descriptor itself travels beside the message.
struct HandleDescriptor {
  HandlePreference preference = HandlePreference::kAuto;
  bool has_descriptor = false;
  // There only where this rank can import such handles too.
  std::optional<FabricHandle> fabric;

  void write(ByteWriter& writer) const;
  // Hostile input: a descriptor without any handle where it is malformed.
  static HandleDescriptor read(ByteReader& reader);
};

// The part of a message that is empty where there is no handle.
void write_fabric(ByteWriter& writer, const std::optional<FabricHandle>& fabric);
// Hostile input: none where it is malformed.
std::optional<FabricHandle> read_fabric(ByteReader& reader);

struct ExportedMemory {
  HandleDescriptor handles;
  FileDescriptor descriptor;  // invalid where there is none
};

// Exports `memory` of `runtime` by every kind that a peer may want. Host memory is not subject to
// SYMM_HANDLE_TYPE. Local. Throws Error: kInvalidArgument for the variable, kSystem.
ExportedMemory export_by_every_kind(DeviceRuntime& runtime, const PhysicalMemory& memory);

// `ranks` by rank. Fabric handles where SYMM_HANDLE_TYPE asks for them on a rank, or where some
// rank has no descriptor; else descriptors. Throws Error, the same on every rank that has the same
// ranks: kMismatch where two ranks ask for different kinds, kUnsupported where a rank lacks the
// kind that is needed; the message names the ranks.
HandleKind choose_handle_kind(std::span<const HandleDescriptor> ranks, const RankNames& names = {});

// The handle of `kind` out of what a rank sent. A missing descriptor stays invalid, which the
// import refuses.
MemoryHandle handle_of(HandleKind kind, const HandleDescriptor& handles, FileDescriptor descriptor);

}  // namespace symm
