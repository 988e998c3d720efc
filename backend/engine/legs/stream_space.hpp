// Legs on a stream of a GPU: each is put there, and none is waited for.
//
// NOTE [Memory of captured messages]
// Replays of messages of megabytes stood still over NCCL 2.28.9 where one end was a tensor of the
// program and the other memory of symm; with memory of symm at both ends they do not. NCCL
// registers the memory of captured messages with the peer (NCCL_GRAPH_REGISTER), each end by
// itself; that this is why has not been shown. So both ends are in memory that symm has allocated,
// all of it in one way.
#pragma once

#include <bitset>
#include <memory>
#include <vector>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/legs/leg_space.hpp"
#include "backend/engine/legs/stream_link.hpp"

namespace symm {

class StreamSpace final : public LegSpace {
 public:
  // `local` has the ranks of this rank's host. Both outlive this object.
  StreamSpace(DeviceGroup& local, StreamLink& link) : local_(local), link_(link) {}
  // Waits for the device, which uses the memory of messages; where that cannot be, the memory is
  // kept for ever.
  ~StreamSpace() override;

  // Where the next call goes, by the thread that makes it and whose current stream it is.
  void begin(const DeviceLaunch& to) { to_ = to; }

  std::span<std::byte> allocate(std::size_t bytes) override;
  // NOTE [Memory of captured messages]
  bool takes_any_memory() const override { return link_.takes_any_memory() && !to_.captured; }
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override {
    return link_.start(to, from, call);
  }
  bool is_on_cpu() const override { return false; }
  // A call that is captured needs an engine that can be, and one of its kind before the capture,
  // which has connected the ranks.
  void check(CollectiveKind kind) override;
  void run_local(const CollectiveArgs& args, std::chrono::milliseconds timeout) override;
  void fold(const FoldCall& call) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void abort() noexcept override { link_.abort(); }

  // Bytes of the GPU that messages have.
  std::size_t allocated_bytes() const;

 private:
  DeviceGroup& local_;
  StreamLink& link_;
  DeviceLaunch to_;
  std::vector<std::shared_ptr<Mapping>> memory_;
  std::bitset<kCollectiveKindCount> connected_;  // kinds that were called outside of captures
};

}  // namespace symm
