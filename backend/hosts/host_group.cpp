#include "backend/hosts/host_group.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <string_view>
#include <symm/inter_host.hpp>
#include <thread>
#include <utility>

#include "kernels/core/decimal.hpp"
#include "kernels/cpu/wait.hpp"
#include "symm_mem/bootstrap/host_identity.hpp"
#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{2};

std::atomic<const InterHostEngines*> engines_of_process{nullptr};

// The bytes of `tensor`, which lives as long as they are held.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), {static_cast<std::int64_t>(tensor.nbytes())},
      [tensor](void*) {}, at::kByte);
}

constexpr const char* kCpuEngine = "gloo";

std::string problem_of(const std::string& engine) {
  if (engine == "none") return "inter_host is none";
  const InterHostEngines* const engines = engines_of_process.load();
  if (engines == nullptr) return "this process has no engines (set_inter_host_engines)";
  return engines->problem(engine);
}

std::string gpu_problem_of(const std::string& engine) {
  const InterHostEngines* const engines = engines_of_process.load();
  if (engines == nullptr || engines->gpu_problem == nullptr) {
    return "this process has no engines for CUDA tensors";
  }
  return engines->gpu_problem(engine);
}

// The engine of each kind of device: a name that was given for both is for those that it can serve.
EngineWish engines_of(const std::string& wanted) {
  EngineWish wish = parse_engine_wish(wanted, "inter_host");
  const bool one_name = !wish.by_device && wish.cpu != "auto" && wish.cpu != "none";
  if (one_name && !problem_of(wish.cpu).empty() && gpu_problem_of(wish.cuda).empty()) {
    wish.cpu = "auto";
  } else if (one_name && !gpu_problem_of(wish.cuda).empty()) {
    wish.cuda = wish.cpu;  // staged
  }
  if (wish.cpu == "auto") wish.cpu = kCpuEngine;
  return wish;
}

std::string problem_of(const EngineWish& wish) {
  std::string problem = problem_of(wish.cpu);
  if (problem.empty() && wish.cuda != "auto" && wish.cuda != wish.cpu) {
    problem = gpu_problem_of(wish.cuda);
  }
  return problem;
}

std::string await(C10dStore& store, const std::string& key, const Deadline& deadline,
                  const std::string& name) {
  for (;;) {
    if (const auto value = store.get(key)) return {value->begin(), value->end()};
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout, name, " has not said what carries bytes between hosts");
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// The text up to the end of the line, which leaves `text`.
std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.size(), text.find('\n'));
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(text.size(), end + 1));
  return line;
}

bool releases_memory(const std::string& engine) {
  const InterHostEngines* const engines = engines_of_process.load();
  return engines != nullptr && engines->releases_memory != nullptr &&
         engines->releases_memory(engine);
}

constexpr int kThreadsOfRank = 2;  // that are busy: its own and its engine's

// What the ranks have agreed on before their hosts are connected.
struct Agreed {
  EngineWish engines;
  bool releases_memory = true;
  int ranks_on_machine = 0;  // of the group, whatever they say their host is
  bool few_cores = false;    // of cpu_limits()
};

// Every rank says which engine it wants, on which machine it runs, whether the engine releases
// memory there, how many cores it may use, and what is wrong with the engine.
Agreed agree_on_engine(const c10::intrusive_ptr<c10d::Store>& store,
                       const CommunicatorConfig& config, const std::string& wanted,
                       const SpansHosts& found) {
  C10dStore board(store);
  const EngineWish wish = engines_of(wanted);
  const std::string engine = wish.cuda == "auto" || wish.cuda == wish.cpu
                                 ? wish.cpu
                                 : "cpu:" + wish.cpu + ",cuda:" + wish.cuda;
  const std::string machine = host_boot_id();
  const std::string problem_here = problem_of(wish);
  const char* const memory = problem_here.empty() && releases_memory(wish.cpu) ? "any" : "own";
  const std::string own =
      text_of(engine, "\n", machine, "\n", memory, "\n", usable_cores(), "\n", problem_here);
  const auto key = [](int rank) { return "symm/inter_host/" + std::to_string(rank); };
  board.set(key(config.rank), {own.begin(), own.end()});
  const RankNames names(config.global_ranks);
  const Deadline deadline(config.timeout);
  const HostLayout layout(found.hosts());
  Agreed agreed;
  agreed.engines = wish;
  struct Machine {
    int ranks = 0;
    int cores = 0;
  };
  std::map<std::string, Machine> machines;
  std::string first;
  for (int rank = 0; rank < config.world_size; ++rank) {
    const std::string host = found.hosts()[static_cast<std::size_t>(rank)];
    const std::string name = names.name(rank) + " on host " + host;
    const std::string said = await(board, key(rank), deadline, name);
    std::string_view rest = said;
    const std::string theirs = take_line(rest);
    const std::string where = take_line(rest);
    if (take_line(rest) != "any") agreed.releases_memory = false;
    Machine& of_rank = machines[where];
    ++of_rank.ranks;
    of_rank.cores = std::max(of_rank.cores, parse_decimal<int>(take_line(rest)).value_or(0));
    const std::string problem(rest);
    if (rank == 0) first = theirs;
    if (theirs != first) {
      throw Error(ErrorCode::kInvalidArgument,
                  "inter_host: expected the same on every rank of group \"", config.group_name,
                  "\", got ", first, " on ", names.name(0), " on host ", layout.names[0], " and ",
                  theirs, " on ", name);
    }
    if (!problem.empty()) {
      throw Error(ErrorCode::kUnsupported, found.what(), "; ", name, " cannot use the engine ",
                  theirs, ": ", problem,
                  "; choose another with inter_host or SYMM_INTER_HOST (hosts: ", layout.text(),
                  ")");
    }
  }
  agreed.ranks_on_machine = machines[machine].ranks;
  agreed.few_cores = std::ranges::any_of(machines, [](const auto& each) {
    return each.second.cores < kThreadsOfRank * each.second.ranks;
  });
  return agreed;
}

CommunicatorConfig config_of_host(const CommunicatorConfig& whole, const HostLayout& layout) {
  CommunicatorConfig config = whole;
  const auto rank = static_cast<std::size_t>(whole.rank);
  const auto host = static_cast<std::size_t>(layout.host_of[rank]);
  config.group_name = whole.group_name + " on host " + layout.names[host];
  config.rank = layout.local_of[rank];
  config.world_size = static_cast<int>(layout.members[host].size());
  config.global_ranks.clear();
  for (const int member : layout.members[host]) {
    config.global_ranks.push_back(
        whole.global_ranks.empty() ? member : whole.global_ranks[static_cast<std::size_t>(member)]);
  }
  return config;
}

// A message of the engine's; its tensor is kept until the engine is done with it. What has been
// received is copied to `target`, where that is given, by the first wait, on the stream that is
// current there.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(std::shared_ptr<BackendLink> link, SharedWork work, at::Tensor tensor,
              at::Tensor target, std::string what, int rank, c10d::OpType type,
              milliseconds timeout)
      : Work(rank, type),
        link_(std::move(link)),
        work_(std::move(work)),
        tensor_(std::move(tensor)),
        target_(std::move(target)),
        what_(std::move(what)),
        timeout_(timeout) {}
  ~MessageWork() override {
    if (!came_) link_->keep(std::move(work_));
  }

  bool isCompleted() override { return came_ || ((*work_)->isCompleted() && !may_go_on()); }
  bool isSuccess() const override { return came_ || ((*work_)->isSuccess() && !may_go_on()); }
  std::exception_ptr exception() const override { return came_ ? nullptr : (*work_)->exception(); }
  int sourceRank() const override { return (*work_)->sourceRank(); }
  std::vector<at::Tensor> result() override { return {target_.defined() ? target_ : tensor_}; }
  void synchronize() override {}
  void abort() override { (*work_)->abort(); }
  // Once: an engine may wait again for what has come, until its time-out.
  bool wait(milliseconds timeout) override {
    return with_torch_errors([&] {
      const std::lock_guard lock(waiting_);
      if (came_) return true;
      waited_ = true;
      link_->wait(**work_, what_, timeout.count() > 0 ? timeout : timeout_);
      came_ = true;
      if (target_.defined()) {
        const at::NoGradGuard no_grad;
        target_.copy_(tensor_, /*non_blocking=*/true);
      }
      return true;
    });
  }

 private:
  // Then the engine's Work may say that it has completed, because its wait had a break.
  bool may_go_on() const { return waited_ && link_->has_breaks() && !(*work_)->exception(); }

  const std::shared_ptr<BackendLink> link_;
  SharedWork work_;
  const at::Tensor tensor_;
  const at::Tensor target_;
  const std::string what_;
  const milliseconds timeout_;
  std::mutex waiting_;
  std::atomic<bool> waited_{false};
  std::atomic<bool> came_{false};
};

}  // namespace

const InterHostEngines* inter_host_engines() { return engines_of_process.load(); }

void set_inter_host_engines(const InterHostEngines& engines) {
  engines_of_process.store(new InterHostEngines(engines));  // as long as the process
}

HostGroup::HostGroup(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorConfig& config,
                     const std::string& wanted, const SpansHosts& found)
    : rank_(config.rank),
      names_(config.global_ranks),
      layout_(found.hosts()),
      group_name_(config.group_name),
      timeout_(config.timeout),
      store_(store) {
  const Agreed agreed = agree_on_engine(store, config, wanted, found);
  const std::string& engine = agreed.engines.cpu;
  gpu_wish_ = agreed.engines.cuda;
  const auto host = layout_.host_of[index(rank_)];
  C10dStore local(c10::make_intrusive<c10d::PrefixStore>(text_of("symm/host/", host), store));
  CommunicatorConfig here = config_of_host(config, layout_);
  here.busy_threads = kThreadsOfRank * agreed.ranks_on_machine;
  engine_ = GroupEngine::create(local, here);
  const std::shared_ptr<C10dStore> late = store_of_late_calls(store, "cpu");
  CallWatch::clear(*late, layout_, rank_);
  CallWatch::clear(*store_of_late_calls(store, "gpu"), layout_, rank_);
  const std::string what = engine + " could not connect the hosts (" + layout_.text() + ")";
  auto backend = through_engine(what, [&] {
    return engines_of_process.load()->make(
        engine, c10::make_intrusive<c10d::PrefixStore>("symm/engine", store), rank_,
        config.world_size, config.timeout);
  });
  link_ = std::make_shared<BackendLink>(engine, std::move(backend), agreed.releases_memory);
  engine_->when_interrupted([link = link_, slot = gpu_slot_] {
    link->abort();
    std::shared_ptr<GpuHosts> gpu;
    {
      const std::lock_guard lock(slot->mutex);
      gpu = slot->gpu;
    }
    if (gpu) gpu->abort();
  });
  space_ = std::make_unique<CpuSpace>(engine_->communicator(), *link_);
  collectives_ = std::make_unique<HostCollectives>(
      config.group_name, layout_, rank_, names_, engine_->communicator(), *space_,
      cpu_limits(layout_.host_count(), agreed.few_cores, !link_->takes_any_memory()), late);
}

GpuHosts& HostGroup::gpu(DeviceGroup& local, const std::shared_ptr<DeviceStreams>& streams) {
  if (GpuHosts* const made = gpu_if_made()) return *made;
  const std::lock_guard lock(gpu_slot_->mutex);
  std::shared_ptr<GpuHosts>& gpu = gpu_slot_->gpu;
  if (!gpu) {
    gpu = std::make_shared<GpuHosts>(GpuHosts::Config{.group_name = group_name_,
                                                      .layout = layout_,
                                                      .names = names_,
                                                      .local = engine_->communicator(),
                                                      .cpu_link = *link_,
                                                      .store = store_,
                                                      .rank = rank_,
                                                      .wish = gpu_wish_,
                                                      .timeout = timeout_},
                                     local, streams);
    made_gpu_.store(gpu.get(), std::memory_order_release);
  }
  return *gpu;
}

HostGroup::~HostGroup() {
  std::shared_ptr<GpuHosts> gpu;
  const std::lock_guard lock(gpu_slot_->mutex);
  gpu.swap(gpu_slot_->gpu);
}

std::string HostGroup::description() const {
  return text_of(layout_.host_count(), " hosts (", layout_.text(), "), symm inside each and ",
                 engine_name(), " between them");
}

c10::intrusive_ptr<c10d::Work> HostGroup::transfer(const at::Tensor& tensor, int peer, int tag,
                                                   bool is_send) {
  return message(tensor, peer, tag, is_send, at::Tensor());
}

c10::intrusive_ptr<c10d::Work> HostGroup::staged_transfer(
    const at::Tensor& tensor, int peer, int tag, bool is_send,
    const std::shared_ptr<DeviceStreams>& streams) {
  const at::Tensor staged = at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(true));
  if (!is_send) return message(staged, peer, tag, false, tensor);
  const at::NoGradGuard no_grad;
  staged.copy_(tensor, /*non_blocking=*/true);
  wait_for_stream(streams, streams->current(), kLongestTimeout);
  return message(staged, peer, tag, true, at::Tensor());
}

c10::intrusive_ptr<c10d::Work> HostGroup::message(const at::Tensor& tensor, int peer, int tag,
                                                  bool is_send, const at::Tensor& received_to) {
  if (tag >= BackendLink::kFirstTag) {
    throw Error(ErrorCode::kInvalidArgument, "tag: expected less than ", BackendLink::kFirstTag,
                " for a message between hosts, got ", tag);
  }
  const std::string what =
      text_of("symm: ", engine_name(), is_send ? " send to rank " : " recv from rank ", peer,
              " on host ", layout_.names[index(layout_.host_of[index(peer)])]);
  auto work = link_->message(bytes_of(tensor), peer, tag, is_send);
  return c10::make_intrusive<MessageWork>(link_, std::move(work), tensor, received_to, what, rank_,
                                          is_send ? c10d::OpType::SEND : c10d::OpType::RECV,
                                          engine_->timeout());
}

}  // namespace symm
