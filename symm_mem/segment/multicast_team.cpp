#include "symm_mem/segment/multicast_team.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/handle_choice.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kReportMagic = 0x7473616d;
constexpr std::size_t kMaxReason = 512;

// Makes "rank 1: <reason>; rank 3: <reason>" of those that are not empty.
void add_reason(std::string& text, const std::string& name, const std::string& reason) {
  if (!reason.empty()) text += text_of(text.empty() ? "" : "; ", name, ": ", reason);
}

std::string name_in(const RankNames& names, std::size_t rank) {
  return names.name(static_cast<int>(rank));
}

// How a rank fared in a step. Little-endian: magic u32, reason, fabric handle of the object (on
// rank 0, after the first step).
struct Report {
  std::string reason;  // "" where the step went well
  std::optional<FabricHandle> fabric;

  std::vector<std::uint8_t> encode() const {
    ByteWriter writer;
    writer.constant(kReportMagic);
    writer.field(reason.substr(0, kMaxReason), kMaxReason);
    write_fabric(writer, fabric);
    return writer.take();
  }

  static Report decode(std::span<const std::uint8_t> bytes, const std::string& name) {
    ByteReader reader(bytes);
    reader.constant(kReportMagic);
    Report report;
    reader.field(report.reason, kMaxReason);
    report.fabric = read_fabric(reader);
    if (!reader.finished()) {
      throw Error(ErrorCode::kSecurity, "multicast: ", name, " sent a malformed report");
    }
    return report;
  }
};

}  // namespace

std::string multicast_problem(DeviceRuntime& runtime) {
  if (MulticastDevice* const device = runtime.multicast()) return device->problem();
  return text_of(device_kind_name(runtime.kind()), " memory has no multicast");
}

MulticastCapability MulticastCapability::of(DeviceRuntime& runtime, std::size_t bytes,
                                            int world_size) {
  MulticastCapability capability;
  const std::optional<Error> error = try_step([&] {
    capability.problem = multicast_problem(runtime);
    if (!capability.problem.empty() || world_size < 2) return;
    MulticastDevice& device = *runtime.multicast();
    capability.gpu = device.uuid();
    const std::size_t granularity = device.granularity(world_size, bytes);
    if (granularity == 0 || bytes % granularity != 0) {
      capability.problem = text_of("a multicast object is made of chunks of ", granularity,
                                   " bytes, and the segment has ", bytes);
    }
  });
  if (error) capability.problem = error->what();
  capability.problem.resize(std::min(capability.problem.size(), kMaxReason));
  return capability;
}

void MulticastCapability::write(ByteWriter& writer) const {
  writer.field(problem.substr(0, kMaxReason), kMaxReason);
  writer.field(gpu);
}

MulticastCapability MulticastCapability::read(ByteReader& reader) {
  MulticastCapability capability;
  reader.field(capability.problem, kMaxReason);
  reader.field(capability.gpu);
  return capability;
}

std::string multicast_obstacle(std::span<const MulticastCapability> capabilities,
                               const RankNames& names) {
  std::string reasons;
  for (std::size_t rank = 0; rank < capabilities.size(); ++rank) {
    add_reason(reasons, name_in(names, rank), capabilities[rank].problem);
  }
  if (!reasons.empty()) return reasons;
  if (capabilities.size() < 2) return "a group of one rank has nobody to multicast to";
  for (std::size_t rank = 1; rank < capabilities.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (capabilities[rank].gpu == capabilities[other].gpu) {
        return text_of(name_in(names, other), " and ", name_in(names, rank),
                       " use one GPU; a multicast object needs a GPU of its own for every rank");
      }
    }
  }
  return "";
}

Multicast Multicast::agree(const MeshRound& round,
                           std::span<const MulticastCapability> capabilities,
                           DeviceRuntime& runtime, const std::shared_ptr<PhysicalMemory>& memory,
                           HandleKind kind) {
  std::string failure = multicast_obstacle(capabilities, round.mesh.names());
  if (!failure.empty()) return Multicast(std::move(failure));
  MulticastDevice& device = *runtime.multicast();
  const std::size_t bytes = memory->bytes();
  const auto rank = static_cast<std::size_t>(round.rank());
  std::unique_ptr<MulticastObject> object;
  MemoryHandle handle;  // of the object: exported on rank 0, to be imported elsewhere
  std::byte* base = nullptr;
  // Runs `work` and exchanges how the ranks fared. Returns what rank 0 has sent; on rank 0 what it
  // has sent itself, less the descriptor.
  const auto step = [&](auto&& work) {
    Report own;
    const std::optional<Error> error = try_step(work);
    if (error) own.reason = error->what();
    const auto* const descriptor = std::get_if<FileDescriptor>(&handle);
    if (const auto* const fabric = std::get_if<FabricHandle>(&handle)) own.fabric = *fabric;
    std::vector<std::uint8_t> message = own.encode();
    std::vector<BootstrapMesh::Received> received =
        round.exchange(message, descriptor != nullptr ? descriptor->get() : -1);
    received[rank].message = std::move(message);
    for (std::size_t peer = 0; peer < received.size(); ++peer) {
      const std::string name = name_in(round.mesh.names(), peer);
      add_reason(failure, name, Report::decode(received[peer].message, name).reason);
    }
    return std::move(received[0]);
  };
  BootstrapMesh::Received first = step([&] {
    if (rank != 0) return;
    object = device.create(round.world_size(), bytes, kind);
    handle = object->export_handle(kind);
  });
  if (rank == 0) {
    handle = {};
  } else if (kind == HandleKind::kFabric) {
    handle = Report::decode(first.message, name_in(round.mesh.names(), 0))
                 .fabric.value_or(FabricHandle{});
  } else {
    handle = std::move(first.descriptor);
  }
  if (failure.empty()) {
    step([&] {
      if (rank != 0) object = device.import_object(std::exchange(handle, {}), bytes);
      object->add_device();
    });
  }
  if (failure.empty()) {
    step([&] {
      object->bind(memory);
      base = object->map();
    });
  }
  if (!failure.empty()) return Multicast(std::move(failure));
  return Multicast(std::move(object), base);
}

std::byte* Multicast::base() const {
  if (available()) return base_;
  throw Error(ErrorCode::kUnsupported, "this segment has no multicast pointer: ", why_not_);
}

}  // namespace symm
