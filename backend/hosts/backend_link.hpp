// A c10d backend as the link between hosts: it moves bytes in the CPU's memory and never combines.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/engine/legs/host_link.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

using WorkRef = c10::intrusive_ptr<c10d::Work>;
// One of which others may know weakly: a weak_intrusive_ptr would put off the end of the Work, with
// which engines let go of a tensor.
using SharedWork = std::shared_ptr<const WorkRef>;

// What an exception of an engine says.
std::string words_of(const std::exception& error);
// kTimeout or kPeerLost: `what` failed with these words.
Error engine_error(const std::string& what, const std::string& words);

// Runs a body of the engine's, whose exceptions are of any kind; Error and Interrupted pass.
template <typename Body>
auto through_engine(const std::string& what, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    throw engine_error(what, words_of(error));
  }
}

// NOTE [Memory of messages]
// A message whose wait has failed may still be under way. Of most engines it is not known for how
// long, so messages lie in memory of the link, which the engine's tensors keep. An engine that
// releases memory has done with a tensor once the Work is destroyed; then messages may lie in the
// user's memory:
//   - only a BackendTransfer holds their Works, and ends in the call that has made it, by return or
//     by exception, while the caller's tensors are held by the call;
//   - abort() holds Works for a moment, on any thread, with `aborting_`, for which the end of a
//     transfer waits.
// So when a call raises, the engine writes to its outputs no more, and has read from its inputs
// only what was there before.

// The engine needs send and recv that return before they are done, and messages of two ranks under
// one tag must arrive in the order in which they were sent. Thread safe.
class BackendLink final : public HostLink {
 public:
  // Messages of collectives have tags from here on, a program's have smaller ones.
  static constexpr int kFirstTag = 1 << 30;

  // `releases_memory`: of the engine (inter_host.hpp).
  BackendLink(std::string name, c10::intrusive_ptr<c10d::Backend> backend, bool releases_memory)
      : name_(std::move(name)),
        releases_memory_(releases_memory),
        has_breaks_(releases_memory && backend->getBackendName() == "gloo"),
        backend_(std::move(backend)) {}
  // A forked child leaves the engine, whose threads are the parent's, alone.
  ~BackendLink() override;

  const std::string& name() const override { return name_; }
  std::span<std::byte> allocate(std::size_t bytes) override;
  bool takes_any_memory() const override { return releases_memory_; }
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override {
    return start(to, from, call, false);
  }
  // The same of collectives on GPUs, which another thread may be sending meanwhile.
  std::unique_ptr<HostTransfer> start_of_gpu(std::span<const HostMessage> to,
                                             std::span<const HostMessage> from,
                                             std::uint32_t call) {
    return start(to, from, call, true);
  }
  // As allocate(), of memory that GPUs copy from and to by themselves.
  std::span<std::byte> allocate_pinned(std::size_t bytes);
  // Gives the engine up as well: its connections close, which the other hosts notice.
  void abort() noexcept override;

  // One message of a tensor of bytes, which is kept until the engine has done with it. Throws
  // Error.
  SharedWork message(const at::Tensor& bytes, int peer, int tag, bool is_send);
  // Waits for a message. On the thread that hears signals handlers run meanwhile, where
  // has_breaks(); after a break a Work of the engine says that it has completed. Throws Error and
  // Interrupted, after which the message goes on.
  void wait(c10d::Work& work, const std::string& what, std::chrono::milliseconds timeout) const;
  // Whether a wait of the engine's that abort() of the Work has ended may be begun again: known of
  // gloo over TCP.
  bool has_breaks() const { return has_breaks_; }
  // Keeps the Work of a message that nobody waits for, as one of the last kKept: some engines take
  // back what is under way when its Work is destroyed.
  static constexpr std::size_t kKept = 64;
  void keep(SharedWork work);

  // Returns when no abort() holds a Work that was made before.
  void await_aborts() const { const std::lock_guard lock(aborting_); }

 private:
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from, std::uint32_t call,
                                      bool of_gpu);
  std::span<std::byte> keep(const at::Tensor& block, std::size_t bytes);
  bool was_aborted() const;
  // The engine, while there is one; throws kAborted.
  c10::intrusive_ptr<c10d::Backend> engine();
  void track(const SharedWork& work);
  at::Tensor view_of(std::span<std::byte> bytes) const;

  const std::string name_;
  const bool releases_memory_;
  const bool has_breaks_;
  mutable std::mutex aborting_;
  mutable std::mutex mutex_;  // guards what follows
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<std::weak_ptr<const WorkRef>> under_way_;
  std::size_t prune_at_ = 64;
  std::deque<SharedWork> kept_;
  std::vector<at::Tensor> memory_;
  const std::uint32_t fork_generation_ = fork_generation();
};

}  // namespace symm
