#include "backend/hosts/host_group.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstring>
#include <symm/inter_host.hpp>
#include <thread>
#include <utility>

#include "symm_mem/c10d/c10d_store.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{2};

std::atomic<const InterHostEngines*> engines_of_process{nullptr};

std::string words_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

// Runs a body of the engine's, whose exceptions are of any kind.
template <typename Body>
auto through(const std::string& engine, const std::string& what, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    const std::string words = words_of(error);
    const bool late = words.find("imed out") != std::string::npos;
    throw Error(late ? ErrorCode::kTimeout : ErrorCode::kPeerLost, engine, " ", what, ": ", words);
  }
}

// The bytes of `tensor`, which lives as long as they are held.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), {static_cast<std::int64_t>(tensor.nbytes())},
      [tensor](void*) {}, at::kByte);
}

std::vector<std::int64_t> counts_of(std::span<const Part> parts) {
  std::vector<std::int64_t> counts;
  counts.reserve(parts.size());
  for (const Part& part : parts) counts.push_back(static_cast<std::int64_t>(part.count));
  return counts;
}

std::size_t total_of(std::span<const Part> parts) {
  std::size_t total = 0;
  for (const Part& part : parts) total += part.count;
  return total;
}

std::string engine_of(const std::string& wanted) { return wanted == "auto" ? "gloo" : wanted; }

std::string problem_of(const std::string& engine) {
  if (engine == "none") return "inter_host is none";
  const InterHostEngines* const engines = engines_of_process.load();
  if (engines == nullptr) return "this process has no engines (set_inter_host_engines)";
  return engines->problem(engine);
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

// The engine of the group; every rank says which it wants and what is wrong with that.
std::string agree_on_engine(const c10::intrusive_ptr<c10d::Store>& store,
                            const CommunicatorConfig& config, const std::string& wanted,
                            const SpansHosts& found) {
  C10dStore board(store);
  const std::string engine = engine_of(wanted);
  const std::string own = engine + "\n" + problem_of(engine);
  const auto key = [](int rank) { return "symm/inter_host/" + std::to_string(rank); };
  board.set(key(config.rank), {own.begin(), own.end()});
  const RankNames names(config.global_ranks);
  const Deadline deadline(config.timeout);
  const HostLayout layout(found.hosts());
  std::string first;
  for (int rank = 0; rank < config.world_size; ++rank) {
    const std::string host = found.hosts()[static_cast<std::size_t>(rank)];
    const std::string name = names.name(rank) + " on host " + host;
    const std::string said = await(board, key(rank), deadline, name);
    const std::string theirs = said.substr(0, said.find('\n'));
    const std::string problem = said.substr(std::min(said.size(), theirs.size() + 1));
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
  return first;
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

// A message of the engine's; its tensor is kept until the engine is done with it.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor tensor, std::string what, int rank,
              c10d::OpType type)
      : Work(rank, type),
        work_(std::move(work)),
        tensor_(std::move(tensor)),
        what_(std::move(what)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  void synchronize() override {}
  void abort() override { work_->abort(); }
  bool wait(milliseconds timeout) override {
    return with_torch_errors(
        [&] { return through(what_, "failed", [&] { return work_->wait(timeout); }); });
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const at::Tensor tensor_;
  const std::string what_;
};

}  // namespace

void set_inter_host_engines(const InterHostEngines& engines) {
  engines_of_process.store(new InterHostEngines(engines));  // as long as the process
}

void BackendLink::exchange(std::span<const Part> to, std::span<const Part> from,
                           milliseconds timeout) {
  if (aborted_.load()) {
    throw Error(ErrorCode::kAborted, name_, " was ended by an earlier failure of the group");
  }
  const std::size_t sent = total_of(to);
  const std::size_t received = total_of(from);
  // Memory of its own, which the engine keeps where it goes on after a wait that has ended; of one
  // byte at least, as an engine may refuse a null pointer.
  const at::Tensor out = at::empty({static_cast<std::int64_t>(sent + 1)}, at::kByte);
  const at::Tensor in = at::empty({static_cast<std::int64_t>(received + 1)}, at::kByte);
  auto* next = static_cast<std::byte*>(out.mutable_data_ptr());
  for (const Part& part : to) {
    if (part.count > 0) std::memcpy(next, part.data, part.count);
    next += part.count;
  }
  at::Tensor input = out.narrow(0, 0, static_cast<std::int64_t>(sent));
  at::Tensor output = in.narrow(0, 0, static_cast<std::int64_t>(received));
  std::vector<std::int64_t> input_counts = counts_of(to);
  std::vector<std::int64_t> output_counts = counts_of(from);
  through(name_, "could not exchange", [&] {
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    return backend_->alltoall_base(output, input, output_counts, input_counts, options)
        ->wait(timeout);
  });
  next = static_cast<std::byte*>(in.mutable_data_ptr());
  for (const Part& part : from) {
    if (part.count > 0) std::memcpy(part.data, next, part.count);
    next += part.count;
  }
}

void BackendLink::abort() noexcept {
  if (aborted_.exchange(true)) return;
  try {
    backend_->abort();
  } catch (const std::exception&) {
    // The group's failure is what is told.
  }
}

HostGroup::HostGroup(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorConfig& config,
                     const std::string& wanted, const SpansHosts& found)
    : rank_(config.rank), layout_(found.hosts()) {
  const std::string engine = agree_on_engine(store, config, wanted, found);
  const auto host = layout_.host_of[index(rank_)];
  C10dStore local(c10::make_intrusive<c10d::PrefixStore>(text_of("symm/host/", host), store));
  engine_ = GroupEngine::create(local, config_of_host(config, layout_));
  auto backend = through(engine, "could not connect the hosts (" + layout_.text() + ")", [&] {
    return engines_of_process.load()->make(
        engine, c10::make_intrusive<c10d::PrefixStore>("symm/engine", store), rank_,
        config.world_size, config.timeout);
  });
  link_ = std::make_shared<BackendLink>(engine, std::move(backend));
  engine_->when_interrupted([link = link_] { link->abort(); });
  collectives_ = std::make_unique<HostCollectives>(layout_, rank_, RankNames(config.global_ranks),
                                                   engine_->communicator(), *link_);
}

c10::intrusive_ptr<c10d::Work> HostGroup::transfer(const at::Tensor& tensor, int peer, int tag,
                                                   bool is_send) {
  std::vector<at::Tensor> one{bytes_of(tensor)};
  const std::string what =
      text_of("symm: ", engine_name(), is_send ? " send to rank " : " recv from rank ", peer,
              " on host ", layout_.names[index(layout_.host_of[index(peer)])]);
  auto work = through(what, "failed", [&] {
    return is_send ? link_->backend().send(one, peer, tag) : link_->backend().recv(one, peer, tag);
  });
  return c10::make_intrusive<MessageWork>(std::move(work), tensor, what, rank_,
                                          is_send ? c10d::OpType::SEND : c10d::OpType::RECV);
}

}  // namespace symm
