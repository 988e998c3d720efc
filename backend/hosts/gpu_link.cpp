#include "backend/hosts/gpu_link.hpp"

#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <symm/inter_host.hpp>
#include <utility>

#include "symm_mem/process/blocking_section.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

// Orders the current stream behind messages.
class StreamTransfer final : public HostTransfer {
 public:
  StreamTransfer(std::string what, std::vector<WorkRef> works)
      : what_(std::move(what)), works_(std::move(works)) {}
  // The engine has its own limit: with one given, its Works would be waited for by this thread.
  void wait(milliseconds, std::atomic<int>&) override { wait(); }
  void wait() {
    for (const WorkRef& work : works_) {
      through_engine(what_, [&] { return work->wait(); });
    }
  }

 private:
  const std::string what_;
  const std::vector<WorkRef> works_;
};

template <typename Body>
void try_to(const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception&) {
    // What an engine cannot end has a limit of its own; the group's failure is what is told.
  }
}

void abort_all(std::vector<c10::intrusive_ptr<c10d::Backend>> groups) noexcept {
  for (auto& backend : groups) {
    try_to([&] { backend->abort(); });
    try_to([&] { backend.reset(); });
  }
}

const char* name_of(c10d::ErrorType error) {
  return error == c10d::ErrorType::TIMEOUT ? "Timed out" : "a connection has failed";
}

}  // namespace

GpuLink::GpuLink(Config config, std::shared_ptr<LocalGroup> group)
    : config_(std::move(config)), group_(std::move(group)) {
  group_->watchdog().add(*this);
}

GpuLink::~GpuLink() {
  if (fork_generation() != fork_generation_) {
    // The threads of the engine are the parent's.
    [[maybe_unused]] const auto* kept = new std::vector<BackendPtr>(take_groups());
    ender_.abandon();
    return;
  }
  group_->watchdog().remove(*this);
  blocking_section([this] {
    abort();
    constexpr milliseconds kStopLimit{5'000};
    ender_.stop(Error(ErrorCode::kAborted, "the process group was destroyed"), kStopLimit);
  });
}

GpuLink::BackendPtr GpuLink::make(const std::string& name, int rank, int size) {
  return through_engine(config_.engine + " could not be made", [&] {
    return inter_host_engines()->make_for_gpu(
        config_.engine, c10::make_intrusive<c10d::PrefixStore>(name, config_.store), rank, size,
        config_.timeout, config_.device);
  });
}

// Every rank to the next one and from the one before, so that all take part.
void GpuLink::connect_all() {
  BackendPtr all;
  {
    const std::lock_guard lock(mutex_);
    if (flat_ || ended_) return;
    all = flat_ = make("all", config_.rank, config_.world_size);
  }
  const int next = (config_.rank + 1) % config_.world_size;
  const int before = (config_.rank + config_.world_size - 1) % config_.world_size;
  const std::array<std::pair<HostMessage, bool>, 2> messages{
      {{{next, {config_.scratch, 1}}, true}, {{before, {config_.scratch + 1, 1}}, false}}};
  std::vector<WorkRef> works;
  begin(all, messages, works);
  StreamTransfer(config_.engine + " could not connect the hosts", std::move(works)).wait();
}

at::Tensor GpuLink::view_of(std::span<std::byte> bytes) const {
  return at::for_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())})
      .options(at::TensorOptions(at::kByte).device(config_.device))
      .target_device(config_.device)
      .make_tensor();
}

GpuLink::Pair GpuLink::group_with(int peer) {
  const std::lock_guard lock(mutex_);
  if (ended_) throw_ended();
  if (flat_) return {flat_, peer};
  Pair& pair = pairs_[peer];
  if (!pair.backend) {
    const int low = std::min(peer, config_.rank);
    const bool is_low = low == config_.rank;
    pair = {make(text_of("pair/", low, "/", std::max(peer, config_.rank)), is_low ? 0 : 1, 2),
            is_low ? 1 : 0};
  }
  return pair;
}

void GpuLink::begin(const BackendPtr& backend,
                    std::span<const std::pair<HostMessage, bool>> messages,
                    std::vector<WorkRef>& works) {
  constexpr int kNoTag = 0;
  through_engine(config_.engine + " between hosts", [&] {
    const bool together = backend->supportsCoalescing();
    if (together) backend->startCoalescing();
    const auto end = [&] {
      if (!together) return;
      if (WorkRef work = backend->endCoalescing()) works.push_back(std::move(work));
    };
    try {
      for (const auto& [message, is_send] : messages) {
        std::vector<at::Tensor> one{view_of(message.bytes)};
        WorkRef work = is_send ? backend->send(one, message.peer, kNoTag)
                               : backend->recv(one, message.peer, kNoTag);
        if (!together) works.push_back(std::move(work));
      }
    } catch (...) {
      try_to(end);
      throw;
    }
    end();
  });
}

std::unique_ptr<HostTransfer> GpuLink::start(std::span<const HostMessage> to,
                                             std::span<const HostMessage> from,
                                             std::uint32_t /*call*/) {
  std::set<int> peers;
  for (const HostMessage& each : to) peers.insert(each.peer);
  for (const HostMessage& each : from) peers.insert(each.peer);
  std::vector<WorkRef> works;
  std::vector<std::pair<HostMessage, bool>> together;
  BackendPtr backend;
  for (const int peer : peers) {
    const Pair pair = group_with(peer);
    if (backend != pair.backend) {
      if (backend) begin(backend, together, works);
      together.clear();
      backend = pair.backend;
    }
    for (const HostMessage& each : to) {
      if (each.peer == peer) together.push_back({{pair.peer, each.bytes}, true});
    }
    for (const HostMessage& each : from) {
      if (each.peer == peer) together.push_back({{pair.peer, each.bytes}, false});
    }
  }
  if (backend) begin(backend, together, works);
  return std::make_unique<StreamTransfer>(config_.engine + " between hosts", std::move(works));
}

GpuLink::Way GpuLink::way_of(const Side& side) const {
  const int own = config_.rank;
  return {.low = std::min(own, side.peer),
          .high = std::max(own, side.peer),
          .tag_channel = side.tag_channel,
          .downwards = (own > side.peer) == side.is_send};
}

GpuLink::Pair GpuLink::connected(const Way& way) {
  const bool is_send = (config_.rank == way.high) == way.downwards;
  const auto [from, to] =
      way.downwards ? std::pair(way.high, way.low) : std::pair(way.low, way.high);
  const Pair made{
      make(text_of("messages/", from, "/", to, "/", way.tag_channel), is_send ? 0 : 1, 2),
      is_send ? 1 : 0};
  const std::pair<HostMessage, bool> one{{made.peer, {config_.scratch + (is_send ? 0 : 1), 1}},
                                         is_send};
  std::vector<WorkRef> works;
  begin(made.backend, std::span(&one, 1), works);
  StreamTransfer(config_.engine + " could not connect two hosts", std::move(works)).wait();
  return made;
}

// A first message connects both directions, as each of two ranks may begin with a send. While the
// peers are waited for, abort() is not.
void GpuLink::connect_sides(std::vector<Side> sides, bool captured) {
  const std::lock_guard connecting(connecting_);
  std::set<Way> missing;
  {
    const std::lock_guard lock(mutex_);
    for (const Side& side : sides) {
      Way way = way_of(side);
      if (ways_.contains(way)) continue;
      for (const bool downwards : {false, true}) {
        way.downwards = downwards;
        if (!ways_.contains(way)) missing.insert(way);
      }
    }
  }
  if (captured && !missing.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "send and recv between hosts: these two ranks have exchanged no message with such "
                "a tag yet; call once before capture");
  }
  for (const Way& way : missing) {
    const Pair made = connected(way);
    const std::lock_guard lock(mutex_);
    if (ended_) {
      try_to([&] { made.backend->abort(); });
      throw_ended();
    }
    ways_.emplace(way, made);
  }
}

void GpuLink::throw_ended() const {
  throw Error(ErrorCode::kAborted, name(), " was ended by an earlier failure of the group");
}

void GpuLink::message(const Side& side, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  Pair pair;
  {
    const std::lock_guard lock(mutex_);
    const auto known = ways_.find(way_of(side));
    if (known == ways_.end()) throw_ended();
    pair = known->second;
  }
  const std::pair<HostMessage, bool> one{{pair.peer, bytes}, side.is_send};
  std::vector<WorkRef> works;
  begin(pair.backend, std::span(&one, 1), works);
  StreamTransfer(text_of(config_.engine, side.is_send ? " send" : " recv", " between hosts"),
                 std::move(works))
      .wait();
}

// In the order in which every rank ends its own: see NOTE [Groups of the engine].
std::vector<GpuLink::BackendPtr> GpuLink::take_groups() {
  std::vector<BackendPtr> groups;
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (flat_) groups.push_back(std::exchange(flat_, nullptr));
  for (auto& [peer, pair] : std::exchange(pairs_, {})) groups.push_back(std::move(pair.backend));
  for (auto& [way, pair] : std::exchange(ways_, {})) groups.push_back(std::move(pair.backend));
  std::erase(groups, nullptr);
  return groups;
}

void GpuLink::abort() noexcept { abort_all(take_groups()); }

void GpuLink::shutdown() noexcept {
  std::vector<BackendPtr> groups = take_groups();
  for (BackendPtr& backend : groups) {
    try_to([&] { backend->shutdown(); });
    try_to([&] { backend.reset(); });
  }
}

std::string GpuLink::error_of_engine() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return "";
  std::vector<c10d::Backend*> groups{flat_.get()};
  for (const auto& [peer, pair] : pairs_) groups.push_back(pair.backend.get());
  for (const auto& [way, pair] : ways_) groups.push_back(pair.backend.get());
  for (c10d::Backend* const backend : groups) {
    if (backend == nullptr) continue;
    c10d::ErrorType error = c10d::ErrorType::SUCCESS;
    try_to([&] { error = backend->getError(); });
    if (error != c10d::ErrorType::SUCCESS) return name_of(error);
  }
  return "";
}

void GpuLink::look(bool /*at_connections*/) {
  if (ended_) return;
  if (!group_->failed()) {
    const std::string error = error_of_engine();
    if (error.empty()) return;
    group_->fail(engine_error(
        group_->prefix() + config_.engine + " between hosts (" + config_.hosts + ")", error));
  }
  try_to([this] { ender_.post([groups = take_groups()](const Error*) { abort_all(groups); }); });
}

}  // namespace symm
