// Legs on the CPU: each blocks until it is done.
#pragma once

#include "backend/engine/legs/leg_space.hpp"

namespace symm {

class Communicator;

class CpuSpace final : public LegSpace {
 public:
  // `local` has the ranks of this rank's host. Both outlive this object.
  CpuSpace(Communicator& local, HostLink& link) : local_(local), link_(link) {}

  std::span<std::byte> allocate(std::size_t bytes) override { return link_.allocate(bytes); }
  bool takes_any_memory() const override { return link_.takes_any_memory(); }
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override {
    return link_.start(to, from, call);
  }
  bool is_on_cpu() const override { return true; }
  void run_local(const CollectiveArgs& args, std::chrono::milliseconds timeout) override;
  void fold(const FoldCall& call) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void abort() noexcept override { link_.abort(); }

 private:
  Communicator& local_;
  HostLink& link_;
};

}  // namespace symm
