#include "backend/hosts/gpu_hosts.hpp"

#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <numeric>
#include <symm/inter_host.hpp>
#include <thread>
#include <utility>

#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {
namespace {

constexpr std::chrono::milliseconds kBetweenQuestions{2};

std::string key_of(int rank) { return text_of("symm/inter_host/gpu/", rank); }

// The engine that is looked at, whatever the ranks find.
std::string gpu_engine_name(const std::string& wish) {
  return wish == "auto" ? std::string(kGpuEngine) : wish;
}

std::string gpu_problem(const std::string& engine) {
  const InterHostEngines* const engines = inter_host_engines();
  if (engines == nullptr || engines->gpu_problem == nullptr || engines->make_for_gpu == nullptr) {
    return "this process has no engines for CUDA tensors (set_inter_host_engines)";
  }
  return engines->gpu_problem(engine);
}

}  // namespace

std::shared_ptr<C10dStore> store_of_late_calls(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::string& device) {
  return std::make_shared<C10dStore>(
      c10::make_intrusive<c10d::PrefixStore>("symm/late/" + device, store));
}

GpuHosts::GpuHosts(const Config& config, DeviceGroup& local, std::shared_ptr<DeviceStreams> streams)
    : config_(config),
      local_(local),
      streams_(std::move(streams)),
      said_(config.layout.host_of.size()),
      stages_(config.layout.host_of.size()) {
  const std::string own = text_of(local.runtime().identity().uuid_text(), "\n",
                                  gpu_problem(gpu_engine_name(config_.wish)));
  C10dStore(config_.store).set(key_of(config_.rank), {own.begin(), own.end()});
}

GpuHosts::~GpuHosts() {
  abort();
  if (!scratch_) return;
  try {
    const RelaxedCapture relaxed(local_.runtime());
    local_.runtime().synchronize();
  } catch (const Error&) {
    // It cannot be said that nothing uses the memory.
    [[maybe_unused]] const auto* kept = new std::shared_ptr(scratch_);
  }
}

std::vector<GpuFacts> GpuHosts::facts_of(const std::vector<int>& ranks) {
  C10dStore board(config_.store);
  const Deadline deadline(config_.timeout);
  std::vector<GpuFacts> facts;
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    while (!said_[index]) {
      const std::string host =
          config_.layout.names[static_cast<std::size_t>(config_.layout.host_of[index])];
      if (const auto value = board.get(key_of(rank))) {
        const std::string text(value->begin(), value->end());
        const std::size_t end = std::min(text.size(), text.find('\n'));
        said_[index] = GpuFacts{host, config_.names.name(rank), text.substr(0, end),
                                text.substr(std::min(text.size(), end + 1))};
        break;
      }
      config_.local.local_group()->check_usable();
      check_interrupts();
      if (deadline.passed()) {
        throw Error(ErrorCode::kTimeout, "Timed out: ", config_.names.name(rank), " on host ", host,
                    " has not used its GPU in this group");
      }
      std::this_thread::sleep_for(kBetweenQuestions);
    }
    facts.push_back(*said_[index]);
  }
  return facts;
}

GpuLink& GpuHosts::gpu_link() {
  if (!gpu_link_) {
    GpuRuntime& runtime = local_.runtime();
    scratch_ = runtime.map(runtime.allocate(1));
    gpu_link_ = std::make_unique<GpuLink>(
        GpuLink::Config{
            .engine = gpu_engine_name(config_.wish),
            .store = c10::make_intrusive<c10d::PrefixStore>("symm/engine/gpu", config_.store),
            .rank = config_.rank,
            .world_size = config_.layout.world_size(),
            .timeout = config_.timeout,
            .device = streams_->device(),
            .hosts = config_.layout.text(),
            .scratch = scratch_->base()},
        config_.local.local_group());
    made_link_.store(gpu_link_.get(), std::memory_order_release);
  }
  return *gpu_link_;
}

void GpuHosts::connect() {
  const std::lock_guard lock(mutex_);
  if (collectives_) return;
  std::vector<int> everybody(config_.layout.host_of.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  engine_ = choose_gpu_engine(config_.wish, config_.cpu_link.name(), facts_of(everybody));
  StreamLink* link = nullptr;
  if (engine_->staged) {
    staged_link_ = std::make_unique<StagedLink>(config_.cpu_link, local_, streams_);
    link = staged_link_.get();
  } else {
    if (engine_->flat) gpu_link().connect_all();
    link = &gpu_link();
  }
  LOG(INFO) << text_of("symm: group \"", config_.group_name, "\": ", engine_->name,
                       engine_->staged ? " carries CUDA tensors between hosts through memory of "
                                         "the CPU"
                                       : " carries CUDA tensors between hosts",
                       engine_->why.empty() ? "" : ", as " + engine_->why);
  // Else run() does not wait for messages.
  std::shared_ptr<KeyValueStore> late;
  if (engine_->staged) late = store_of_late_calls(config_.store, "gpu");
  space_ = std::make_unique<StreamSpace>(local_, *link);
  collectives_ = std::make_unique<HostCollectives>(
      config_.group_name, config_.layout, config_.rank, config_.names, config_.local, *space_,
      gpu_limits(config_.layout.host_count()), std::move(late));
}

std::optional<std::string> GpuHosts::engine_text() const {
  const std::lock_guard lock(mutex_);
  if (!engine_) return std::nullopt;
  return engine_->name + (engine_->staged ? " through the CPU's memory" : "");
}

void GpuHosts::run(const CollectiveArgs& args, const DeviceLaunch& to) {
  if (!is_connected()) {
    if (to.captured) {
      throw Error(ErrorCode::kUnsupported, collective_name(args.kind),
                  " over several hosts: the group has not used its GPUs yet; call once before "
                  "capture");
    }
    connect();
  }
  space_->begin(to);
  collectives_->run(args, to.timeout);
}

bool GpuHosts::stages(int peer, bool captured) {
  const std::lock_guard lock(mutex_);
  std::optional<bool>& known = stages_[static_cast<std::size_t>(peer)];
  if (!known) {
    if (captured) {
      throw Error(ErrorCode::kUnsupported, "a message to or from ", config_.names.name(peer),
                  " on another host: the two have exchanged none yet; call once before capture");
    }
    known =
        choose_gpu_engine(config_.wish, config_.cpu_link.name(),
                          facts_of({std::min(peer, config_.rank), std::max(peer, config_.rank)}))
            .staged;
  }
  return *known;
}

void GpuHosts::connect_sides(const std::vector<GpuLink::Side>& sides, bool captured) {
  GpuLink* link = made_link_.load(std::memory_order_acquire);
  if (link == nullptr) {
    const std::lock_guard lock(mutex_);
    link = &gpu_link();
  }
  link->connect_sides(sides, captured);
}

void GpuHosts::message(const GpuLink::Side& side, std::span<std::byte> bytes) {
  made_link_.load(std::memory_order_acquire)->message(side, bytes);
}

void GpuHosts::shutdown() noexcept {
  if (GpuLink* const link = made_link_.load(std::memory_order_acquire)) link->shutdown();
}

void GpuHosts::abort() noexcept {
  if (GpuLink* const link = made_link_.load(std::memory_order_acquire)) link->abort();
}

}  // namespace symm
