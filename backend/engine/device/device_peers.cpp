#include "backend/engine/device/device_peers.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/engine/group/status_exchange.hpp"
#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {
namespace {

// In the collectives' stream, above the sequences of its exchanges.
constexpr std::uint64_t kDescriptorTopic = std::uint64_t{1} << 32;
constexpr std::uint64_t kStatusTopic = kDescriptorTopic + 1;

// "cuda:0 (NVIDIA H100, GPU-0001...)": the number is the one of the process that says it.
std::string gpu_text(const GpuRuntime& runtime) {
  const GpuIdentity& gpu = runtime.identity();
  return std::string(device_kind_name(runtime.kind())) + ":" + std::to_string(gpu.index) + " (" +
         gpu.name + ", " + gpu.uuid_text() + ")";
}

std::vector<std::uint8_t> encode_status(const std::optional<Error>& error) {
  SegmentDescriptor status;
  status.error = error;
  return status.encode();
}

}  // namespace

DevicePeers::DevicePeers(LocalGroup& group, GpuRuntime& runtime, const DeviceSegment& own)
    : group_(group),
      runtime_(runtime),
      own_(own),
      peers_(static_cast<std::size_t>(group.world_size())) {}

void DevicePeers::post() {
  const ExportedMemory exported = export_by_every_kind(runtime_, own_.memory());
  own_descriptor_.device = static_cast<std::uint32_t>(runtime_.kind());
  own_descriptor_.device_name = gpu_text(runtime_);
  own_descriptor_.gpu = runtime_.identity().uuid;
  own_descriptor_.multiprocessors = static_cast<std::uint32_t>(runtime_.identity().multiprocessors);
  own_descriptor_.with_lines.gpus = runtime_.gpus_with_lines();
  own_descriptor_.bytes = own_.bytes();
  own_descriptor_.mapped_bytes = own_.mapped_bytes();
  own_descriptor_.handles = exported.handles;
  group_.mesh().post(kDescriptorTopic, own_descriptor_.encode(), exported.descriptor.get());
}

void DevicePeers::post_failure(LocalGroup& group, const std::string& device, const Error& error) {
  SegmentDescriptor descriptor;
  descriptor.device_name = device;
  descriptor.error = error;
  group.mesh().post(kDescriptorTopic, descriptor.encode(), -1);
  // This rank will not come to connect_all().
  const Error status(error.code(), group.rank_name(group.rank()), " cannot use ", device, ": ",
                     error.what());
  group.mesh().post(kStatusTopic, encode_status(status), -1);
}

std::string DevicePeers::own_gpu() const {
  return group_.rank_name(group_.rank()) + "'s " + own_descriptor_.device_name;
}

// A peer that is found gone may have posted after the mesh was last looked at, so it is looked at
// once more.
BootstrapMesh::Received DevicePeers::wait_for(int peer, std::uint64_t topic,
                                              const Deadline& deadline, const std::string& call) {
  const std::string what =
      call + ": waiting for the first use of a device by " + group_.rank_name(peer) + ": ";
  Error gone(ErrorCode::kPeerLeft, "");
  bool is_gone = false;
  try {
    return group_.mesh().take(peer, topic, deadline.remaining(), [&] {
      check_interrupts();
      if (!group_.poll(call)) return true;
      is_gone = group_.is_gone(peer, &gone);
      return is_gone;
    });
  } catch (const Error& error) {
    const std::string late = error.code() == ErrorCode::kTimeout ? "Timed out; " : "";
    if (!is_gone) throw Error(error.code(), what + late + error.what());
  }
  try {
    return group_.mesh().take(peer, topic, std::chrono::milliseconds(0), {});
  } catch (const Error&) {
    throw Error(gone.code(), what + gone.what());
  }
}

void DevicePeers::check(int peer, const SegmentDescriptor& descriptor) const {
  const std::string name = group_.rank_name(peer);
  if (descriptor.error) {
    throw Error(descriptor.error->code(),
                name + " cannot use " + descriptor.device_name + ": " + descriptor.error->what());
  }
  const std::string both = own_gpu() + " and " + name + "'s " + descriptor.device_name;
  if (descriptor.device != own_descriptor_.device) {
    throw Error(ErrorCode::kUnsupported,
                "the ranks of a group must use one kind of device; got " + both);
  }
  if (descriptor.protocol != SegmentDescriptor::kProtocol ||
      descriptor.bytes != own_descriptor_.bytes || descriptor.mapped_bytes < descriptor.bytes) {
    throw Error(
        ErrorCode::kUnsupported,
        "device memory of " + both + " is not laid out alike: protocol " +
            std::to_string(SegmentDescriptor::kProtocol) + " and " +
            std::to_string(descriptor.protocol) + ", " + std::to_string(own_descriptor_.bytes) +
            " and " + std::to_string(descriptor.bytes) + " bytes (mapped " +
            std::to_string(descriptor.mapped_bytes) + "); install one version on every rank");
  }
}

void DevicePeers::take(int peer, const Deadline& deadline, const std::string& call) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  if (entry.problem) throw Error(*entry.problem);
  if (entry.descriptor) return;
  BootstrapMesh::Received received = wait_for(peer, kDescriptorTopic, deadline, call);
  try {
    SegmentDescriptor descriptor =
        SegmentDescriptor::decode(received.message, peer, group_.names());
    check(peer, descriptor);
    entry.descriptor = std::move(descriptor);
    entry.file = std::move(received.descriptor);
  } catch (const Error& error) {
    entry.problem = error;
    throw;
  }
}

void DevicePeers::map_by(int peer, HandleKind kind) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  if (entry.mapping) return;
  const SegmentDescriptor& descriptor = *entry.descriptor;
  try {
    auto memory = runtime_.import_memory(handle_of(kind, descriptor.handles, std::move(entry.file)),
                                         descriptor.mapped_bytes);
    entry.mapping = entry.range ? runtime_.map_at(std::move(memory), entry.range, 0)
                                : runtime_.map(std::move(memory));
    entry.range = entry.mapping->range();
  } catch (const Error& error) {
    entry.problem =
        Error(error.code() == ErrorCode::kSecurity ? error.code() : ErrorCode::kUnsupported,
              own_gpu() + " cannot reach the memory of " + group_.rank_name(peer) + "'s " +
                  descriptor.device_name + ": " + error.what());
    throw Error(*entry.problem);
  }
}

void DevicePeers::map(int peer, bool needs_lines, const Deadline& deadline,
                      const std::string& call) {
  take(peer, deadline, call);
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  try {
    if (needs_lines) need_lines(peer);
    map_by(peer, choose_handle_kind(std::array<HandleDescriptor, 2>{own_descriptor_.handles,
                                                                    entry.descriptor->handles}));
  } catch (const Error& error) {
    entry.problem = error;
    throw;
  }
}

HandleKind DevicePeers::choose_kind() const {
  std::vector<HandleDescriptor> handles;
  for (const Peer& peer : peers_) {
    handles.push_back((peer.descriptor ? *peer.descriptor : own_descriptor_).handles);
  }
  return choose_handle_kind(handles, group_.names());
}

// What is wrong with one peer's descriptor or memory is part of the status; that waiting has ended
// is thrown.
std::optional<Error> DevicePeers::map_all(const Deadline& deadline, const std::string& call) {
  std::optional<Error> first;
  const auto for_every_peer = [&](auto&& step) {
    for (int peer = 0; peer < group_.world_size(); ++peer) {
      if (peer == group_.rank()) continue;
      try {
        step(peer);
      } catch (const Error& error) {
        if (!problem(peer)) throw;
        if (!first) first = error;
      }
    }
  };
  for_every_peer([&](int peer) { take(peer, deadline, call); });
  if (first) return first;
  HandleKind kind{};
  if (auto error = try_step([&] { kind = choose_kind(); })) return error;
  for_every_peer([&](int peer) { map_by(peer, kind); });
  return first;
}

const SegmentDescriptor& DevicePeers::descriptor_of(int rank) const {
  return rank == group_.rank() ? own_descriptor_
                               : *peers_[static_cast<std::size_t>(rank)].descriptor;
}

bool DevicePeers::have_lines(int one, int other) const {
  const SegmentDescriptor& a = descriptor_of(one);
  const SegmentDescriptor& b = descriptor_of(other);
  return a.with_lines.contains(b.gpu) && b.with_lines.contains(a.gpu);
}

bool DevicePeers::has_lines_to(int peer) const { return have_lines(group_.rank(), peer); }

bool DevicePeers::has_lines() const {
  for (int one = 0; one < group_.world_size(); ++one) {
    for (int other = 0; other < one; ++other) {
      if (!have_lines(one, other)) return false;
    }
  }
  return true;
}

void DevicePeers::need_lines(int peer) const {
  if (has_lines_to(peer)) return;
  throw Error(ErrorCode::kUnsupported, "SYMM_WIRE=line needs NVLink between all GPUs, and ",
              own_gpu(), " has none, or none that it can see, to ", group_.rank_name(peer), "'s ",
              descriptor_of(peer).device_name);
}

int DevicePeers::most_ranks_of_a_gpu() const {
  constexpr auto kWhole = static_cast<std::uint32_t>(kMostBulkBlocksOfGpu);
  std::uint32_t most = 0;
  for (int one = 0; one < group_.world_size(); ++one) {
    const SegmentDescriptor& gpu = descriptor_of(one);
    std::uint32_t ranks = 0;
    for (int other = 0; other < group_.world_size(); ++other) {
      if (descriptor_of(other).gpu == gpu.gpu) ++ranks;
    }
    most = std::max(most, divided_up(ranks * kWhole, std::clamp(gpu.multiprocessors, 1u, kWhole)));
  }
  return static_cast<int>(std::min(most, kWhole));  // each has a block
}

void DevicePeers::connect_all(bool needs_lines, const Deadline& deadline, const std::string& call) {
  if (refusal_) throw Error(*refusal_);
  std::vector<std::optional<Error>> statuses(peers_.size());
  std::optional<Error>& own = statuses[static_cast<std::size_t>(group_.rank())];
  own = map_all(deadline, call);
  if (!own && needs_lines) {
    own = try_step([&] {
      for (int peer = 0; peer < group_.world_size(); ++peer) {
        if (peer != group_.rank()) need_lines(peer);
      }
    });
  }
  group_.mesh().post(kStatusTopic, encode_status(own), -1);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank()) continue;
    const BootstrapMesh::Received received = wait_for(peer, kStatusTopic, deadline, call);
    std::optional<Error>& status = statuses[static_cast<std::size_t>(peer)];
    const auto malformed = try_step(
        [&] { status = SegmentDescriptor::decode(received.message, peer, group_.names()).error; });
    if (malformed) status = malformed;
  }
  const auto refused = std::find_if(statuses.begin(), statuses.end(),
                                    [](const auto& status) { return status.has_value(); });
  if (refused == statuses.end()) return;
  refusal_ = **refused;
  throw Error(*refusal_);
}

void DevicePeers::release() noexcept {
  for (Peer& peer : peers_) {
    peer.mapping.reset();
    peer.file = FileDescriptor();
  }
}

void DevicePeers::map_again(std::vector<BootstrapMesh::Received> received) {
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    SegmentDescriptor descriptor =
        SegmentDescriptor::decode(received[index].message, peer, group_.names());
    check(peer, descriptor);
    peers_[index].descriptor = std::move(descriptor);
    peers_[index].file = std::move(received[index].descriptor);
  }
  const HandleKind kind = choose_kind();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer != group_.rank()) map_by(peer, kind);
  }
}

// The posts travel beside the metadata exchange (NOTE [Rounds of a rendezvous] in
// segment_rendezvous.hpp).
void DevicePeers::restore(std::optional<Error> own, const Deadline& deadline) {
  const auto step = [&](const MeshRound& round) {
    ExportedMemory exported;
    if (!own) {
      own = try_step([&] { exported = export_by_every_kind(runtime_, own_.memory()); });
    }
    own_descriptor_.handles = exported.handles;
    own_descriptor_.error = own;
    round.post(own_descriptor_.encode(), exported.descriptor.get());
    own_descriptor_.error.reset();
    group_.exchange_metadata(LocalGroup::Purpose::kResume, {}, round.deadline);
    std::vector<BootstrapMesh::Received> received = round.take_all();
    if (!own) own = try_step([&] { map_again(std::move(received)); });
    exchange_status(group_, LocalGroup::Purpose::kResume, own, round.deadline);
    return true;
  };
  try {
    group_.run_rendezvous(deadline, step);
  } catch (...) {
    release();
    for (Peer& peer : peers_) peer.problem.reset();
    throw;
  }
}

}  // namespace symm
