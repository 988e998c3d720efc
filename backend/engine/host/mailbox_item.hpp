// One send or recv of the mailbox engine.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "backend/engine/host/point_to_point.hpp"

namespace symm {

class MailboxItem : public Transfer {
 public:
  MailboxItem(bool is_send, std::byte* data, std::size_t bytes, int peer, std::int64_t tag)
      : is_send(is_send), data(data), bytes(bytes), tag(tag), peer_(peer) {}

  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  std::optional<Error> error() const override { return error_; }
  int peer() const noexcept override { return peer_.load(std::memory_order_relaxed); }

  void set_peer(int peer) { peer_.store(peer, std::memory_order_relaxed); }
  void complete(std::optional<Error> error) {
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }

  const bool is_send;
  std::byte* const data;
  const std::size_t bytes;
  const std::int64_t tag;
  std::chrono::steady_clock::time_point started;
  std::chrono::steady_clock::time_point deadline;
  std::function<void()> on_done;
  std::uint64_t number = 0;  // counts the transfers of the group on this rank
  std::uint64_t id = 0;      // of the message, once it has an envelope
  std::size_t moved = 0;     // bytes of the data that have been streamed
  std::size_t slot = 0;      // in the engine's list of transfers in flight

 private:
  std::atomic<int> peer_;
  std::atomic<bool> done_{false};
  std::optional<Error> error_;
};

}  // namespace symm
