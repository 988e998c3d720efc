// Messages of GPUs through the CPU's memory, by an engine that takes only that. The calling thread
// waits for its stream before it sends and for the engine before it goes on, so nothing of it can
// be captured.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/legs/stream_link.hpp"
#include "backend/hosts/backend_link.hpp"
#include "backend/streams/device_streams.hpp"

namespace symm {

class StagedLink final : public StreamLink {
 public:
  // `local`, of the GPU, and `link` outlive this object.
  StagedLink(BackendLink& link, DeviceGroup& local, std::shared_ptr<DeviceStreams> streams)
      : link_(link), local_(local), streams_(std::move(streams)) {}

  const std::string& name() const override { return link_.name(); }
  bool can_be_captured() const override { return false; }
  // Each block of memory has a block of the CPU's beside it.
  bool takes_any_memory() const override { return false; }
  void add_memory(std::span<std::byte> memory) override;
  std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                      std::span<const HostMessage> from,
                                      std::uint32_t call) override;
  void abort() noexcept override { link_.abort(); }

 private:
  struct Block {
    std::span<std::byte> gpu;
    std::span<std::byte> cpu;
  };
  class Transfer;

  // The same bytes in the block of the CPU.
  std::span<std::byte> on_cpu(std::span<std::byte> bytes) const;

  BackendLink& link_;
  DeviceGroup& local_;
  const std::shared_ptr<DeviceStreams> streams_;
  std::vector<Block> blocks_;
};

// Waits until `stream` has come to this point. Throws the group's failure, and kTimeout.
void wait_for_stream(const std::shared_ptr<DeviceStreams>& streams, const c10::Stream& stream,
                     std::chrono::milliseconds limit);

}  // namespace symm
