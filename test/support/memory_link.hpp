// Links between hosts whose ranks are threads of this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/engine/legs/host_link.hpp"
#include "kernels/core/error.hpp"

namespace symm::test {

// What all ranks' links share. Messages of a pair, call and size arrive in their order, as copies.
// `hands_over`: one has left when it has been received, as with Gloo. Thread safe.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(bool hands_over = false) : hands_over_(hands_over) {}

  void send(int from, int to, std::uint32_t call, std::span<const std::byte> bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    under_way_[{from, to, call, bytes.size()}].emplace_back(bytes.begin(), bytes.end());
    messages_ += 1;
    bytes_ += bytes.size();
    changed_.notify_all();
  }

  void receive(int from, int to, std::uint32_t call, std::span<std::byte> bytes,
               std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& queue = under_way_[{from, to, call, bytes.size()}];
    const auto is_over = [&] { return aborted_ || !queue.empty(); };
    wait_until(lock, is_over, timeout, from, to);
    std::memcpy(bytes.data(), queue.front().data(), bytes.size());
    queue.pop_front();
    changed_.notify_all();
  }

  // Until a message that rank `from` has sent has left.
  void finish_send(int from, int to, std::uint32_t call, std::size_t bytes,
                   std::chrono::milliseconds timeout) {
    if (!hands_over_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    auto& queue = under_way_[{from, to, call, bytes}];
    wait_until(
        lock, [&] { return aborted_ || queue.empty(); }, timeout, from, to);
  }

  void abort() {
    const std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

  // Of all ranks, so far.
  std::size_t messages() const { return messages_; }
  std::size_t bytes() const { return bytes_; }
  bool is_empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [kind, queue] : under_way_) {
      if (!queue.empty()) return false;
    }
    return true;
  }

 private:
  template <class IsOver>
  void wait_until(std::unique_lock<std::mutex>& lock, const IsOver& is_over,
                  std::chrono::milliseconds timeout, int from, int to) {
    if (!changed_.wait_for(lock, timeout, is_over)) {
      throw Error(ErrorCode::kTimeout, "no message of rank ", from, " to rank ", to);
    }
    if (aborted_) throw Error(ErrorCode::kPeerLost, "the network was ended");
  }

  const bool hands_over_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  using Kind = std::tuple<int, int, std::uint32_t, std::size_t>;
  std::map<Kind, std::deque<std::vector<std::byte>>> under_way_;
  std::size_t messages_ = 0;
  std::size_t bytes_ = 0;
  bool aborted_ = false;
};

class MemoryLink final : public HostLink {
 public:
  MemoryLink(MemoryNetwork& network, int rank, bool takes_any_memory = false)
      : network_(network), rank_(rank), takes_any_memory_(takes_any_memory) {}

  const std::string& name() const override { return name_; }

  std::span<std::byte> allocate(std::size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes + 64));
    auto* const begin = memory_.back().get();
    const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % 64;
    allocated_.emplace_back(begin + (64 - past), bytes);
    return allocated_.back();
  }

  bool takes_any_memory() const override { return takes_any_memory_; }

  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override {
    if (!takes_any_memory_) {
      for (const auto messages : {to, from}) {
        for (const HostMessage& message : messages) check_own(message.bytes);
      }
    }
    for (const HostMessage& message : to) network_.send(rank_, message.peer, call, message.bytes);
    return std::make_unique<Transfer>(*this, std::vector<HostMessage>(to.begin(), to.end()),
                                      std::vector<HostMessage>(from.begin(), from.end()), call);
  }

  void abort() noexcept override { network_.abort(); }

 private:
  class Transfer final : public HostTransfer {
   public:
    Transfer(MemoryLink& link, std::vector<HostMessage> to, std::vector<HostMessage> from,
             std::uint32_t call)
        : link_(link), to_(std::move(to)), from_(std::move(from)), call_(call) {}
    void wait(std::chrono::milliseconds timeout, std::atomic<int>& awaited) override {
      for (const HostMessage& message : from_) {
        awaited = message.peer;
        link_.network_.receive(message.peer, link_.rank_, call_, message.bytes, timeout);
      }
      for (const HostMessage& message : to_) {
        awaited = message.peer;
        link_.network_.finish_send(link_.rank_, message.peer, call_, message.bytes.size(), timeout);
      }
    }

   private:
    MemoryLink& link_;
    const std::vector<HostMessage> to_;
    const std::vector<HostMessage> from_;
    const std::uint32_t call_;
  };

  void check_own(std::span<const std::byte> bytes) const {
    for (const std::span<std::byte>& own : allocated_) {
      if (bytes.data() >= own.data() && bytes.data() + bytes.size() <= own.data() + own.size()) {
        return;
      }
    }
    throw Error(ErrorCode::kInvalidArgument, "a message that is not in memory of the link");
  }

  const std::string name_ = "memory";
  MemoryNetwork& network_;
  const int rank_;
  const bool takes_any_memory_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::span<std::byte>> allocated_;
};

}  // namespace symm::test
