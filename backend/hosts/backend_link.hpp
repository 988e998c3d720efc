// A c10d backend as the link between hosts: it moves bytes in the CPU's memory and never combines.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/engine/hosts/host_link.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

using WorkRef = c10::intrusive_ptr<c10d::Work>;

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

// Waits for a work of the engine's. Throws Error.
void wait_for(c10d::Work& work, const std::string& what, std::chrono::milliseconds timeout);

// The engine needs send and recv that return before they are done, and messages of two ranks under
// one tag must arrive in the order in which they were sent. Thread safe.
class BackendLink final : public HostLink {
 public:
  // Messages of collectives have this tag.
  static constexpr int kTag = std::numeric_limits<int>::max();

  BackendLink(std::string name, c10::intrusive_ptr<c10d::Backend> backend)
      : name_(std::move(name)), backend_(std::move(backend)) {}

  const std::string& name() const override { return name_; }
  std::span<std::byte> allocate(std::size_t bytes) override;
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from) override;
  // Gives the engine up as well: its connections close, which the other hosts notice.
  void abort() noexcept override;

  // One message of a tensor of bytes, which is kept until the engine has done with it. Throws
  // Error.
  WorkRef message(const at::Tensor& bytes, int peer, int tag, bool is_send);

 private:
  // The engine, while there is one; throws kAborted.
  c10::intrusive_ptr<c10d::Backend> engine();
  void track(const WorkRef& work);
  at::Tensor view_of(std::span<std::byte> bytes) const;

  const std::string name_;
  mutable std::mutex mutex_;  // guards what follows
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> under_way_;
  std::size_t prune_at_ = 64;
  std::vector<at::Tensor> memory_;
};

}  // namespace symm
