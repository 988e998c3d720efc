#include "backend/engine/device/device_peers.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "symm_mem/process/byte_codec.hpp"

namespace symm {

namespace {

constexpr std::uint64_t kOfferTopic = 1;
constexpr std::uint64_t kVerdictTopic = 2;

// Grows with every change of an offer, of DeviceLayout, or of what a kernel expects of a peer's.
constexpr std::uint32_t kDeviceProtocol = 2;
constexpr std::uint32_t kOfferMagic = 0x64676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxText = 1024;

using Uuid = std::array<std::uint8_t, 16>;

std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%02x", uuid[i]);
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

// "cuda:0 (NVIDIA H100, GPU-0001...)": the number is the one of the process that says it.
std::string gpu_text(DeviceId device, const std::string& name, const Uuid& uuid) {
  return device_name(device) + " (" + name + ", " + uuid_text(uuid) + ")";
}

void write_error(ByteWriter& writer, const std::optional<Error>& error) {
  writer.integer(error ? static_cast<std::uint32_t>(error->code()) : kNoError);
  const std::string text = error ? error->what() : "";
  writer.sized(std::string_view(text).substr(0, kMaxText));
}

std::optional<Error> read_error(ByteReader& reader) {
  const auto code = reader.integer<std::uint32_t>();
  const std::string text = reader.text(kMaxText);
  if (code == kNoError) return std::nullopt;
  const auto last = static_cast<std::uint32_t>(ErrorCode::kSecurity);
  return Error(static_cast<ErrorCode>(std::min(code, last)), text);
}

}  // namespace

// What a rank says of its device. Little-endian, in this order, the error last.
struct DevicePeers::Offer {
  std::uint32_t protocol = kDeviceProtocol;
  DeviceId device;
  std::string gpu;  // its name
  Uuid uuid{};
  std::uint64_t layout_bytes = 0;
  std::uint64_t mapped_bytes = 0;
  HandleOffer handles;
  std::optional<Error> error;

  std::vector<std::uint8_t> encode() const {
    ByteWriter writer;
    writer.integer(kOfferMagic);
    writer.integer(protocol);
    writer.integer(static_cast<std::uint32_t>(device.kind));
    writer.integer(static_cast<std::uint32_t>(device.index));
    writer.sized(std::string_view(gpu).substr(0, kMaxText));
    writer.raw(uuid);
    writer.integer(layout_bytes);
    writer.integer(mapped_bytes);
    handles.write(writer);
    write_error(writer, error);
    return writer.take();
  }

  static std::optional<Offer> decode(std::span<const std::uint8_t> bytes) {
    ByteReader reader(bytes);
    const auto magic = reader.integer<std::uint32_t>();
    Offer offer;
    offer.protocol = reader.integer<std::uint32_t>();
    const auto kind = reader.integer<std::uint32_t>();
    const auto index = reader.integer<std::uint32_t>();
    offer.gpu = reader.text(kMaxText);
    const auto uuid = reader.raw(offer.uuid.size());
    offer.layout_bytes = reader.integer<std::uint64_t>();
    offer.mapped_bytes = reader.integer<std::uint64_t>();
    offer.handles = HandleOffer::read(reader);
    offer.error = read_error(reader);
    if (!reader.finished() || magic != kOfferMagic ||
        kind > static_cast<std::uint32_t>(DeviceKind::kHip) || index > 4096) {
      return std::nullopt;
    }
    offer.device = {static_cast<DeviceKind>(kind), static_cast<int>(index)};
    std::copy(uuid.begin(), uuid.end(), offer.uuid.begin());
    return offer;
  }
};

DevicePeers::DevicePeers(PeerMesh& mesh, GroupHealth& health, GpuRuntime& runtime, DeviceId device,
                         std::uint64_t layout_bytes)
    : mesh_(mesh),
      health_(health),
      runtime_(runtime),
      device_(device),
      layout_bytes_(layout_bytes),
      peers_(static_cast<std::size_t>(mesh.world_size())) {}

void DevicePeers::offer(const LocalSegment& own) {
  Offer offer;
  offer.device = device_;
  offer.gpu = runtime_.identity().name;
  offer.uuid = runtime_.identity().uuid;
  offer.layout_bytes = layout_bytes_;
  offer.mapped_bytes = own.mapped_bytes();
  const ExportedMemory exported = export_by_every_kind(runtime_, *own.memory());
  offer.handles = own_handles_ = exported.offer;
  mesh_.post(kOfferTopic, offer.encode(), exported.descriptor.get());
}

void DevicePeers::offer_failure(PeerMesh& mesh, DeviceId device, const Error& error) {
  Offer offer;
  offer.device = device;
  offer.error = error;
  mesh.post(kOfferTopic, offer.encode(), -1);
  // This rank will not come to agree().
  ByteWriter verdict;
  write_error(verdict, Error(error.code(), "rank " + std::to_string(mesh.rank()) + " cannot use " +
                                               device_name(device) + ": " + error.what()));
  mesh.post(kVerdictTopic, verdict.take(), -1);
}

std::string DevicePeers::own_gpu() const {
  return health_.rank_name(mesh_.rank()) + "'s " +
         gpu_text(device_, runtime_.identity().name, runtime_.identity().uuid);
}

// A peer that is found gone may have posted after the mesh was last looked at, so it is looked at
// once more.
PeerMesh::Received DevicePeers::wait_for(int peer, std::uint64_t topic, const Deadline& deadline,
                                         const std::string& call) {
  const std::string what =
      call + ": waiting for the first use of a device by " + health_.rank_name(peer) + ": ";
  Error gone(ErrorCode::kPeerLeft, "");
  bool is_gone = false;
  try {
    return mesh_.take(peer, topic, deadline.remaining(), [&] {
      if (!health_.check_peers(0, call)) return true;
      is_gone = health_.is_gone(peer, &gone);
      return is_gone;
    });
  } catch (const Error& error) {
    const std::string late = error.code() == ErrorCode::kTimeout ? "Timed out; " : "";
    if (!is_gone) throw Error(error.code(), what + late + error.what());
  }
  try {
    return mesh_.take(peer, topic, std::chrono::milliseconds(0), {});
  } catch (const Error&) {
    throw Error(gone.code(), what + gone.what());
  }
}

void DevicePeers::check(int peer, const Offer& offer) const {
  const std::string name = health_.rank_name(peer);
  if (offer.error) {
    throw Error(offer.error->code(),
                name + " cannot use " + device_name(offer.device) + ": " + offer.error->what());
  }
  const std::string both =
      own_gpu() + " and " + name + "'s " + gpu_text(offer.device, offer.gpu, offer.uuid);
  if (offer.device.kind != device_.kind) {
    throw Error(ErrorCode::kUnsupported,
                "the ranks of a group must use one kind of device; got " + both);
  }
  if (offer.protocol != kDeviceProtocol || offer.layout_bytes != layout_bytes_ ||
      offer.mapped_bytes < layout_bytes_) {
    throw Error(ErrorCode::kUnsupported,
                "device memory of " + both + " is not laid out alike: protocol " +
                    std::to_string(kDeviceProtocol) + " and " + std::to_string(offer.protocol) +
                    ", " + std::to_string(layout_bytes_) + " and " +
                    std::to_string(offer.layout_bytes) + " bytes (mapped " +
                    std::to_string(offer.mapped_bytes) + "); install one version on every rank");
  }
}

void DevicePeers::take_offer(int peer, const Deadline& deadline, const std::string& call) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  if (entry.problem) throw Error(*entry.problem);
  if (entry.offer != nullptr) return;
  PeerMesh::Received received = wait_for(peer, kOfferTopic, deadline, call);
  try {
    std::optional<Offer> offer = Offer::decode(received.message);
    if (!offer) {
      throw Error(ErrorCode::kSecurity, health_.rank_name(peer) + " sent a malformed device offer");
    }
    check(peer, *offer);
    entry.offer = std::make_shared<Offer>(*std::move(offer));
    entry.descriptor = std::move(received.descriptor);
  } catch (const Error& error) {
    entry.problem = error;
    throw;
  }
}

HandleKind DevicePeers::kind_for_pair(int peer) const {
  std::array<HandleOffer, 2> offers{own_handles_,
                                    peers_[static_cast<std::size_t>(peer)].offer->handles};
  return choose_handle_kind(offers);
}

HandleKind DevicePeers::kind_for_group() const {
  std::vector<HandleOffer> offers;
  for (const Peer& peer : peers_) {
    offers.push_back(peer.offer == nullptr ? own_handles_ : peer.offer->handles);
  }
  return choose_handle_kind(offers);
}

std::byte* DevicePeers::map_offered(int peer, HandleKind kind) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  if (entry.base != nullptr) return entry.base;
  const Offer& offer = *entry.offer;
  try {
    entry.memory = runtime_.import_memory(
        handle_of(kind, offer.handles, std::move(entry.descriptor)), offer.mapped_bytes);
    entry.mapping = runtime_.map(entry.memory);
  } catch (const Error& error) {
    entry.problem =
        Error(error.code() == ErrorCode::kSecurity ? error.code() : ErrorCode::kUnsupported,
              own_gpu() + " cannot reach the memory of " + health_.rank_name(peer) + "'s " +
                  gpu_text(offer.device, offer.gpu, offer.uuid) + ": " + error.what());
    throw Error(*entry.problem);
  }
  entry.base = entry.mapping->base();
  return entry.base;
}

std::byte* DevicePeers::map(int peer, const Deadline& deadline, const std::string& call) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  take_offer(peer, deadline, call);
  if (entry.base != nullptr) return entry.base;
  try {
    return map_offered(peer, kind_for_pair(peer));
  } catch (const Error& error) {
    entry.problem = error;
    throw;
  }
}

// What is wrong with one peer's offer or memory is part of the verdict; that waiting has ended is
// thrown.
std::optional<Error> DevicePeers::map_all(const Deadline& deadline, const std::string& call) {
  std::optional<Error> first;
  const auto for_every_peer = [&](auto&& step) {
    for (int peer = 0; peer < mesh_.world_size(); ++peer) {
      if (peer == mesh_.rank()) continue;
      try {
        step(peer);
      } catch (const Error& error) {
        if (!problem(peer)) throw;
        if (!first) first = error;
      }
    }
  };
  for_every_peer([&](int peer) { take_offer(peer, deadline, call); });
  if (first) return first;
  HandleKind kind{};
  try {
    kind = kind_for_group();
  } catch (const Error& error) {
    return error;
  }
  for_every_peer([&](int peer) { map_offered(peer, kind); });
  return first;
}

void DevicePeers::agree(const Deadline& deadline, const std::string& call) {
  if (refusal_) throw Error(*refusal_);
  std::vector<std::optional<Error>> verdicts(peers_.size());
  std::optional<Error>& own = verdicts[static_cast<std::size_t>(mesh_.rank())];
  own = map_all(deadline, call);
  ByteWriter writer;
  write_error(writer, own);
  mesh_.post(kVerdictTopic, writer.take(), -1);
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const PeerMesh::Received received = wait_for(peer, kVerdictTopic, deadline, call);
    ByteReader reader(received.message);
    std::optional<Error>& verdict = verdicts[static_cast<std::size_t>(peer)];
    verdict = read_error(reader);
    if (!reader.finished()) {
      verdict = Error(ErrorCode::kSecurity, health_.rank_name(peer) + " sent a malformed verdict");
    }
  }
  const auto refused = std::find_if(verdicts.begin(), verdicts.end(),
                                    [](const auto& verdict) { return verdict.has_value(); });
  if (refused != verdicts.end()) {
    refusal_ = **refused;
    throw Error(*refusal_);
  }
  agreed_ = true;
}

}  // namespace symm
