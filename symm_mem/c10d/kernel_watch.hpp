// What kernels of the user's own that wait for a peer look at, so that no wait is for ever.
//
// The group's watchdog writes it, so it works while a device is stuck: word 0 ends every wait, word
// kFirstRank + r those for rank r alone, and word 1 is how many ranks are gone. The words are in
// memory that the kernels read: of the host on the CPU, pinned on a GPU. A rank that has left in
// good order ends only the waits for it; one that has died ends all of them, since who waits for a
// rank that waits for the dead one should not wait for the time-out.
//
// Local, thread safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "symm_mem/c10d/group_links.hpp"
#include "symm_mem/group/watchdog.hpp"

namespace symm {

class KernelWatch final : public WatchdogTask {
 public:
  static constexpr std::int64_t kFirstRank = 8;

  // `words`: contiguous int64 in the host's memory, zero, at least kFirstRank + world size. The
  // group must have a link (its first rendezvous makes it). Throws Error(kInvalidArgument).
  KernelWatch(const std::string& group_name, at::Tensor words);
  ~KernelWatch() override;
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;

  void look(bool at_connections) override;

  // Throws Error(kAborted) where the group has been destroyed or has failed.
  void check_usable() const { link_->check_usable(); }
  // Which ranks are gone, or why the group has failed; "" where neither is so.
  std::string problem() const;
  // "rank 2", with what the system knows of its process.
  std::string rank_report(int rank) const;
  // Milliseconds: the group's time-out for the device type of `like`.
  std::int64_t timeout_ms(const at::Tensor& like) const;

 private:
  void put(std::int64_t word, std::int64_t value);

  const std::shared_ptr<GroupLink> link_;
  const at::Tensor words_;
  std::int64_t* const data_;
};

}  // namespace symm
