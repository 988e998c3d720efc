#include "symm_mem/segment/handle_choice.hpp"

#include <algorithm>
#include <cstdint>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

// Rank of the first handles whose `member` is `value`, empty where there is none.
std::optional<std::size_t> first_rank(std::span<const HandleDescriptor> ranks, auto value,
                                      auto member) {
  const auto found = std::ranges::find(ranks, value, member);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

template <typename... Why>
[[noreturn]] void refuse(const Why&... why) {
  throw Error(ErrorCode::kUnsupported, "sharing memory between the ranks: ", why...);
}

}  // namespace

void write_fabric(ByteWriter& writer, const std::optional<FabricHandle>& fabric) {
  writer.sized(fabric ? std::span<const std::uint8_t>(fabric->bytes)
                      : std::span<const std::uint8_t>());
}

std::optional<FabricHandle> read_fabric(ByteReader& reader) {
  const auto bytes = reader.sized(FabricHandle::kBytes);
  if (bytes.size() != FabricHandle::kBytes) return std::nullopt;
  FabricHandle fabric;
  std::ranges::copy(bytes, fabric.bytes.begin());
  return fabric;
}

void HandleDescriptor::write(ByteWriter& writer) const {
  writer.integer(static_cast<std::uint32_t>(preference));
  writer.field(has_descriptor);
  write_fabric(writer, fabric);
}

HandleDescriptor HandleDescriptor::read(ByteReader& reader) {
  const auto preference = reader.integer<std::uint32_t>();
  HandleDescriptor handles;
  handles.preference = static_cast<HandlePreference>(preference);
  reader.field(handles.has_descriptor);
  handles.fabric = read_fabric(reader);
  return preference > static_cast<std::uint32_t>(HandlePreference::kFabric) ? HandleDescriptor()
                                                                            : handles;
}

ExportedMemory export_by_every_kind(DeviceRuntime& runtime, const PhysicalMemory& memory) {
  ExportedMemory exported;
  HandleDescriptor& handles = exported.handles;
  if (runtime.kind() != DeviceKind::kHost) handles.preference = handle_preference();
  const HandleKinds kinds = runtime.handle_kinds(memory);
  if (kinds.descriptor && handles.preference != HandlePreference::kFabric) {
    exported.descriptor = runtime.export_descriptor(memory);
    handles.has_descriptor = true;
  }
  if (kinds.fabric && handles.preference != HandlePreference::kPosix) {
    try {
      handles.fabric = std::get<FabricHandle>(runtime.export_memory(memory, HandleKind::kFabric));
    } catch (const Error&) {
      if (!handles.has_descriptor) throw;
    }
  }
  return exported;
}

HandleKind choose_handle_kind(std::span<const HandleDescriptor> ranks, const RankNames& names) {
  const auto name = [&](std::size_t rank) { return names.name(static_cast<int>(rank)); };
  const auto preference = &HandleDescriptor::preference;
  const auto wants_fabric = first_rank(ranks, HandlePreference::kFabric, preference);
  const auto wants_posix = first_rank(ranks, HandlePreference::kPosix, preference);
  if (wants_fabric && wants_posix) {
    throw Error(ErrorCode::kMismatch,
                "SYMM_HANDLE_TYPE must ask for one kind of handle on every rank: it is fabric on ",
                name(*wants_fabric), " and posix on ", name(*wants_posix));
  }
  const auto no_fabric =
      first_rank(ranks, false, [](const HandleDescriptor& one) { return one.fabric.has_value(); });
  const auto no_descriptor = first_rank(ranks, false, &HandleDescriptor::has_descriptor);
  if (wants_fabric) {
    if (!no_fabric) return HandleKind::kFabric;
    refuse("SYMM_HANDLE_TYPE=fabric on ", name(*wants_fabric), ", but the memory of ",
           name(*no_fabric), " has no fabric handle; use auto or posix");
  }
  if (!no_descriptor) return HandleKind::kDescriptor;
  if (wants_posix) {
    refuse("SYMM_HANDLE_TYPE=posix on ", name(*wants_posix), ", but the memory of ",
           name(*no_descriptor), " has no descriptor; use auto or fabric");
  }
  if (!no_fabric) return HandleKind::kFabric;
  refuse("the memory of ", name(*no_descriptor), " has no descriptor and that of ",
         name(*no_fabric), " no fabric handle");
}

MemoryHandle handle_of(HandleKind kind, const HandleDescriptor& handles,
                       FileDescriptor descriptor) {
  if (kind == HandleKind::kFabric) return handles.fabric.value_or(FabricHandle{});
  return descriptor;
}

}  // namespace symm
