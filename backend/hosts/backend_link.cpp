#include "backend/hosts/backend_link.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/hosts/wait_breaks.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLine = 64;

// "gloo send to rank 3"
std::string message_text(const std::string& engine, int peer, bool is_send) {
  return text_of(engine, is_send ? " send to" : " recv from", " rank ", peer);
}

// As long as both ends make the same call it is the same for both, and where they do not it is most
// probably another one: engines end a process over a message that is longer than what was asked
// for.
int tag_of(std::uint32_t call, std::size_t bytes, bool of_gpu) {
  constexpr int kGpuBit = BackendLink::kFirstTag >> 1;
  const std::uint64_t mixed = ((std::uint64_t{call} << 32) ^ bytes) * 0x9e3779b97f4a7c15U;
  return BackendLink::kFirstTag | (of_gpu ? kGpuBit : 0) | static_cast<int>(mixed >> 35);
}

milliseconds left(const Deadline& deadline) {
  return std::max(milliseconds(1), deadline.remaining());
}

class BackendTransfer final : public HostTransfer {
 public:
  explicit BackendTransfer(const BackendLink& link) : link_(link), engine_(link.name()) {}
  BackendTransfer(const BackendTransfer&) = delete;
  BackendTransfer& operator=(const BackendTransfer&) = delete;
  ~BackendTransfer() override {
    messages_.clear();
    if (link_.takes_any_memory()) link_.await_aborts();  // NOTE [Memory of messages]
  }

  void add(SharedWork work, int peer, bool is_send) {
    messages_.push_back({std::move(work), peer, is_send});
  }

  void wait(milliseconds timeout, std::atomic<int>& awaited) override {
    const Deadline deadline(timeout);
    for (const Message& each : messages_) {
      awaited.store(each.peer, std::memory_order_relaxed);
      link_.wait(**each.work, message_text(engine_, each.peer, each.is_send), left(deadline));
    }
  }

 private:
  struct Message {
    SharedWork work;
    int peer;
    bool is_send;
  };

  const BackendLink& link_;
  const std::string engine_;
  std::vector<Message> messages_;
};

}  // namespace

std::string words_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

Error engine_error(const std::string& what, const std::string& words) {
  const bool late = words.find("imed out") != std::string::npos;
  return Error(late ? ErrorCode::kTimeout : ErrorCode::kPeerLost, what, ": ", words);
}

void BackendLink::wait(c10d::Work& work, const std::string& what, milliseconds timeout) const {
  // A wait that was aborted ends with false.
  const auto has_come = [&](milliseconds limit) {
    return through_engine(what + " failed", [&] { return work.wait(limit); });
  };
  if (!has_breaks_ || !hears_interrupts()) {
    if (has_come(timeout)) return;
  } else {
    const Deadline deadline(timeout);
    const WaitBreaks breaks(work);
    for (milliseconds limit = timeout; !was_aborted(); limit = left(deadline)) {
      try {
        if (has_come(limit)) return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kTimeout) throw;
        // The engine would name the time since the last break.
        throw Error(ErrorCode::kTimeout, what, " failed: Timed out after ", timeout.count(), " ms");
      }
      check_interrupts_of_setup();
    }
  }
  throw Error(ErrorCode::kAborted, what, " was ended by a failure of the group");
}

bool BackendLink::was_aborted() const {
  const std::lock_guard lock(mutex_);
  return !backend_;
}

BackendLink::~BackendLink() {
  if (fork_generation() == fork_generation_) return;
  [[maybe_unused]] const auto* kept = new std::deque<SharedWork>(std::move(kept_));
  [[maybe_unused]] const auto* backend = backend_.release();
  [[maybe_unused]] const auto* memory = new std::vector<at::Tensor>(std::move(memory_));
}

std::span<std::byte> BackendLink::allocate(std::size_t bytes) {
  return keep(at::empty({static_cast<std::int64_t>(bytes + kLine)}, at::kByte), bytes);
}

std::span<std::byte> BackendLink::allocate_pinned(std::size_t bytes) {
  const auto options = at::TensorOptions(at::kByte).pinned_memory(true);
  return keep(at::empty({static_cast<std::int64_t>(bytes + kLine)}, options), bytes);
}

std::span<std::byte> BackendLink::keep(const at::Tensor& block, std::size_t bytes) {
  auto* const begin = static_cast<std::byte*>(block.mutable_data_ptr());
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kLine;
  const std::lock_guard lock(mutex_);
  memory_.push_back(block);
  return {begin + (past == 0 ? 0 : kLine - past), bytes};
}

at::Tensor BackendLink::view_of(std::span<std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  for (const at::Tensor& block : memory_) {
    const auto* const begin = static_cast<const std::byte*>(block.const_data_ptr());
    if (bytes.data() < begin || bytes.data() >= begin + block.nbytes()) continue;
    return block.narrow(0, bytes.data() - begin, static_cast<std::int64_t>(bytes.size()));
  }
  if (!releases_memory_) {
    throw Error(ErrorCode::kInvalidArgument, "a message that is not in memory of the link");
  }
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

c10::intrusive_ptr<c10d::Backend> BackendLink::engine() {
  const std::lock_guard lock(mutex_);
  if (backend_) return backend_;
  throw Error(ErrorCode::kAborted, name_, " was ended by an earlier failure of the group");
}

void BackendLink::track(const SharedWork& work) {
  const std::lock_guard lock(mutex_);
  if (under_way_.size() >= prune_at_) {
    std::erase_if(under_way_, [](const auto& old) { return old.expired(); });
    prune_at_ = 2 * under_way_.size() + 64;
  }
  under_way_.emplace_back(work);
}

SharedWork BackendLink::message(const at::Tensor& bytes, int peer, int tag, bool is_send) {
  const c10::intrusive_ptr<c10d::Backend> backend = engine();
  std::vector<at::Tensor> one{bytes};
  auto work = std::make_shared<const WorkRef>(
      through_engine(message_text(name_, peer, is_send), [&]() -> WorkRef {
        return is_send ? backend->send(one, peer, tag) : backend->recv(one, peer, tag);
      }));
  track(work);
  return work;
}

void BackendLink::keep(SharedWork work) {
  SharedWork oldest;  // let go without the lock
  if (fork_generation() != fork_generation_) {
    [[maybe_unused]] const auto* kept = new SharedWork(std::move(work));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!backend_) return;
  kept_.push_back(std::move(work));
  if (kept_.size() <= kKept) return;
  oldest = std::move(kept_.front());
  kept_.pop_front();
}

std::unique_ptr<HostTransfer> BackendLink::start(std::span<const HostMessage> to,
                                                 std::span<const HostMessage> from,
                                                 std::uint32_t call, bool of_gpu) {
  auto transfer = std::make_unique<BackendTransfer>(*this);
  const auto add = [&](const HostMessage& each, bool is_send) {
    const int tag = tag_of(call, each.bytes.size(), of_gpu);
    transfer->add(message(view_of(each.bytes), each.peer, tag, is_send), each.peer, is_send);
  };
  // Sends first. Gloo writes a message in the thread that knows both sides of it, holding a lock of
  // the connection for which its own thread spins: better in that thread, once the receiver has
  // told it (1.3 GB/s against 0.1 to 1.6 between two processes on two cores).
  for (const HostMessage& each : to) add(each, true);
  for (const HostMessage& each : from) add(each, false);
  return transfer;
}

void BackendLink::abort() noexcept {
  if (fork_generation() != fork_generation_) return;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::vector<std::weak_ptr<const WorkRef>> works;
  std::deque<SharedWork> kept;
  {
    const std::lock_guard lock(mutex_);
    backend.swap(backend_);
    works.swap(under_way_);
    kept.swap(kept_);
  }
  if (!backend) return;
  const auto try_to = [](const auto& body) {
    try {
      body();
    } catch (const std::exception&) {
      // What an engine cannot abort ends at its time-out; the group's failure is what is told.
    }
  };
  {
    const std::lock_guard lock(aborting_);
    for (const auto& each : works) {
      if (const SharedWork work = each.lock()) try_to([&] { (*work)->abort(); });
    }
  }
  try_to([&] { backend->abort(); });
  try_to([&] { backend.reset(); });
}

}  // namespace symm
