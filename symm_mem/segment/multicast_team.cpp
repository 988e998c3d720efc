#include "symm_mem/segment/multicast_team.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/handle_choice.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kReportMagic = 0x7473616d;
constexpr std::size_t kMaxReason = 512;

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

// "rank 1: <reason>; rank 3: <reason>" of those that are not empty.
class Reasons {
 public:
  void add(std::size_t rank, const std::string& reason) {
    if (reason.empty()) return;
    text_ += (text_.empty() ? "" : "; ") + rank_text(rank) + ": " + reason;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// How a rank fared in a step. Little-endian: magic u32, reason, fabric handle of the object (on
// rank 0, after the first step).
struct Report {
  std::string reason;  // "" where the step went well
  std::optional<FabricHandle> fabric;

  std::vector<std::uint8_t> encode() const {
    ByteWriter writer;
    writer.integer(kReportMagic);
    writer.sized(std::string_view(reason).substr(0, kMaxReason));
    writer.sized(fabric ? std::span<const std::uint8_t>(fabric->bytes)
                        : std::span<const std::uint8_t>());
    return writer.take();
  }

  static Report decode(std::span<const std::uint8_t> bytes, std::size_t rank) {
    ByteReader reader(bytes);
    const auto magic = reader.integer<std::uint32_t>();
    Report report;
    report.reason = reader.text(kMaxReason);
    const auto fabric = reader.sized(FabricHandle::kBytes);
    if (!reader.finished() || magic != kReportMagic) {
      throw Error(ErrorCode::kSecurity, "multicast: ", rank_text(rank), " sent a malformed report");
    }
    if (fabric.size() == FabricHandle::kBytes) {
      report.fabric.emplace();
      std::copy(fabric.begin(), fabric.end(), report.fabric->bytes.begin());
    }
    return report;
  }
};

// The steps of one rank, each followed by a status exchange.
class Team {
 public:
  Team(const MeshRound& round, MulticastDevice& device, std::size_t bytes, HandleKind kind)
      : round_(round), device_(device), bytes_(bytes), kind_(kind) {}

  void create() {
    MemoryHandle exported;
    attempt([&] {
      if (round_.rank() != 0) return;
      object_ = device_.create(round_.world_size(), bytes_, kind_);
      exported = object_->export_handle(kind_);
    });
    const auto* const descriptor = std::get_if<FileDescriptor>(&exported);
    if (const auto* const fabric = std::get_if<FabricHandle>(&exported)) own_.fabric = *fabric;
    BootstrapMesh::Received first = report(descriptor != nullptr ? descriptor->get() : -1);
    if (kind_ == HandleKind::kFabric) {
      handle_ = Report::decode(first.message, 0).fabric.value_or(FabricHandle{});
    } else {
      handle_ = std::move(first.descriptor);
    }
  }

  void add_devices() {
    attempt([&] {
      if (round_.rank() != 0) object_ = device_.import_object(std::move(handle_), bytes_);
      object_->add_device();
    });
    report(-1);
  }

  void bind(const std::shared_ptr<PhysicalMemory>& memory) {
    attempt([&] {
      object_->bind(memory);
      base_ = object_->map();
    });
    report(-1);
  }

  // "" where all ranks have done every step so far.
  const std::string& failure() const { return failure_; }
  std::unique_ptr<MulticastObject> take_object() { return std::move(object_); }
  std::byte* base() const { return base_; }

 private:
  template <typename Step>
  void attempt(Step&& step) {
    own_ = {};
    const std::optional<Error> error = try_step(std::forward<Step>(step));
    if (error) own_.reason = std::string(error->what()).substr(0, kMaxReason);
  }

  // Returns what rank 0 has sent; on rank 0 what it has sent itself, less the descriptor.
  BootstrapMesh::Received report(int descriptor) {
    std::vector<std::uint8_t> own = own_.encode();
    std::vector<BootstrapMesh::Received> received = round_.exchange(own, descriptor);
    received[static_cast<std::size_t>(round_.rank())].message = std::move(own);
    Reasons reasons;
    for (std::size_t rank = 0; rank < received.size(); ++rank) {
      reasons.add(rank, Report::decode(received[rank].message, rank).reason);
    }
    failure_ = reasons.text();
    return std::move(received[0]);
  }

  const MeshRound& round_;
  MulticastDevice& device_;
  const std::size_t bytes_;
  const HandleKind kind_;
  Report own_;
  std::string failure_;
  MemoryHandle handle_;  // of the object, on ranks that import it
  std::unique_ptr<MulticastObject> object_;
  std::byte* base_ = nullptr;
};

}  // namespace

std::string multicast_problem(DeviceRuntime& runtime) {
  MulticastDevice* const device = runtime.multicast();
  if (device == nullptr) {
    return std::string(device_kind_name(runtime.kind())) + " memory has no multicast";
  }
  return device->problem();
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
      capability.problem = "a multicast object is made of chunks of " +
                           std::to_string(granularity) + " bytes, and the segment has " +
                           std::to_string(bytes);
    }
  });
  if (error) capability.problem = error->what();
  capability.problem.resize(std::min(capability.problem.size(), kMaxReason));
  return capability;
}

void MulticastCapability::write(ByteWriter& writer) const {
  writer.sized(std::string_view(problem).substr(0, kMaxReason));
  writer.raw(gpu);
}

MulticastCapability MulticastCapability::read(ByteReader& reader) {
  MulticastCapability capability;
  capability.problem = reader.text(kMaxReason);
  const auto gpu = reader.raw(capability.gpu.size());
  std::copy(gpu.begin(), gpu.end(), capability.gpu.begin());
  return capability;
}

std::string multicast_obstacle(std::span<const MulticastCapability> capabilities) {
  Reasons reasons;
  for (std::size_t rank = 0; rank < capabilities.size(); ++rank) {
    reasons.add(rank, capabilities[rank].problem);
  }
  if (!reasons.text().empty()) return reasons.text();
  if (capabilities.size() < 2) return "a group of one rank has nobody to multicast to";
  for (std::size_t rank = 1; rank < capabilities.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (capabilities[rank].gpu == capabilities[other].gpu) {
        return rank_text(other) + " and " + rank_text(rank) +
               " use one GPU; a multicast object needs a GPU of its own for every rank";
      }
    }
  }
  return "";
}

Multicast Multicast::agree(const MeshRound& round,
                           std::span<const MulticastCapability> capabilities,
                           DeviceRuntime& runtime, const std::shared_ptr<PhysicalMemory>& memory,
                           HandleKind kind) {
  std::string obstacle = multicast_obstacle(capabilities);
  if (!obstacle.empty()) return Multicast(std::move(obstacle));
  Team team(round, *runtime.multicast(), memory->bytes(), kind);
  team.create();
  if (team.failure().empty()) team.add_devices();
  if (team.failure().empty()) team.bind(memory);
  if (!team.failure().empty()) return Multicast(team.failure());
  return Multicast(team.take_object(), team.base());
}

std::byte* Multicast::base() const {
  if (available()) return base_;
  throw Error(ErrorCode::kUnsupported, "this segment has no multicast pointer: ", why_not_);
}

}  // namespace symm
