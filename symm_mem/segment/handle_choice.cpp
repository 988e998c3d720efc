#include "symm_mem/segment/handle_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

// Rank of the first offer for which `holds` is true, empty where there is none.
template <typename Predicate>
std::optional<std::size_t> first_rank(std::span<const HandleOffer> offers, Predicate&& holds) {
  const auto found = std::find_if(offers.begin(), offers.end(), holds);
  if (found == offers.end()) return std::nullopt;
  return static_cast<std::size_t>(found - offers.begin());
}

std::optional<std::size_t> first_that_asks(std::span<const HandleOffer> offers,
                                           HandlePreference preference) {
  return first_rank(offers, [=](const HandleOffer& o) { return o.preference == preference; });
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kUnsupported, "sharing memory between the ranks: " + why);
}

}  // namespace

void HandleOffer::write(ByteWriter& writer) const {
  writer.integer(static_cast<std::uint32_t>(preference));
  writer.integer(static_cast<std::uint32_t>(has_descriptor));
  writer.sized(fabric ? std::span<const std::uint8_t>(fabric->bytes)
                      : std::span<const std::uint8_t>());
}

HandleOffer HandleOffer::read(ByteReader& reader) {
  const auto preference = reader.integer<std::uint32_t>();
  const auto has_descriptor = reader.integer<std::uint32_t>();
  const auto fabric = reader.sized(FabricHandle::kBytes);
  HandleOffer offer;
  if (preference > static_cast<std::uint32_t>(HandlePreference::kFabric)) return offer;
  offer.preference = static_cast<HandlePreference>(preference);
  offer.has_descriptor = has_descriptor == 1;
  if (fabric.size() == FabricHandle::kBytes) {
    offer.fabric.emplace();
    std::copy(fabric.begin(), fabric.end(), offer.fabric->bytes.begin());
  }
  return offer;
}

ExportedMemory export_by_every_kind(DeviceRuntime& runtime, const PhysicalMemory& memory) {
  ExportedMemory exported;
  HandleOffer& offer = exported.offer;
  if (runtime.kind() != DeviceKind::kHost) offer.preference = handle_preference();
  const HandleKinds kinds = runtime.handle_kinds(memory);
  if (kinds.descriptor && offer.preference != HandlePreference::kFabric) {
    exported.descriptor = runtime.export_descriptor(memory);
    offer.has_descriptor = true;
  }
  if (kinds.fabric && offer.preference != HandlePreference::kPosix) {
    try {
      offer.fabric = std::get<FabricHandle>(runtime.export_memory(memory, HandleKind::kFabric));
    } catch (const Error&) {
      if (!offer.has_descriptor) throw;
    }
  }
  return exported;
}

HandleKind choose_handle_kind(std::span<const HandleOffer> offers) {
  const auto wants_fabric = first_that_asks(offers, HandlePreference::kFabric);
  const auto wants_posix = first_that_asks(offers, HandlePreference::kPosix);
  if (wants_fabric && wants_posix) {
    throw Error(ErrorCode::kMismatch,
                "SYMM_HANDLE_TYPE must ask for one kind of handle on every rank: it is fabric on " +
                    rank_text(*wants_fabric) + " and posix on " + rank_text(*wants_posix));
  }
  const auto no_fabric = first_rank(offers, [](const HandleOffer& o) { return !o.fabric; });
  const auto no_descriptor =
      first_rank(offers, [](const HandleOffer& o) { return !o.has_descriptor; });
  if (wants_fabric) {
    if (!no_fabric) return HandleKind::kFabric;
    refuse("SYMM_HANDLE_TYPE=fabric on " + rank_text(*wants_fabric) + ", but the memory of " +
           rank_text(*no_fabric) + " has no fabric handle; use auto or posix");
  }
  if (!no_descriptor) return HandleKind::kDescriptor;
  if (wants_posix) {
    refuse("SYMM_HANDLE_TYPE=posix on " + rank_text(*wants_posix) + ", but the memory of " +
           rank_text(*no_descriptor) + " has no descriptor; use auto or fabric");
  }
  if (!no_fabric) return HandleKind::kFabric;
  refuse("the memory of " + rank_text(*no_descriptor) + " has no descriptor and that of " +
         rank_text(*no_fabric) + " no fabric handle");
}

MemoryHandle handle_of(HandleKind kind, const HandleOffer& offer, FileDescriptor descriptor) {
  if (kind == HandleKind::kFabric) return offer.fabric.value_or(FabricHandle{});
  return descriptor;
}

}  // namespace symm
