#include "backend/hosts/staged_link.hpp"

#include <utility>

#include "symm_mem/process/blocking_section.hpp"

namespace symm {

void wait_for_stream(const std::shared_ptr<DeviceStreams>& streams, const c10::Stream& stream,
                     std::chrono::milliseconds limit) {
  std::vector<c10::Event> events;
  events.push_back(streams->take_event());
  events.back().record(stream);
  DevicePoint(streams, std::move(events)).wait(limit);
}

// Ends as the messages of the CPU's link do; those that have come are copied behind that.
class StagedLink::Transfer final : public HostTransfer {
 public:
  Transfer(StagedLink& link, std::unique_ptr<HostTransfer> messages, std::vector<HostMessage> from)
      : link_(link), messages_(std::move(messages)), from_(std::move(from)) {}

  void wait(std::chrono::milliseconds timeout, std::atomic<int>& awaited) override {
    messages_->wait(timeout, awaited);
    const StreamHandle stream = link_.streams_->current().native_handle();
    for (const HostMessage& each : from_) {
      link_.local_.copy(each.bytes.data(), link_.on_cpu(each.bytes).data(), each.bytes.size(),
                        stream);
    }
  }

 private:
  StagedLink& link_;
  const std::unique_ptr<HostTransfer> messages_;
  const std::vector<HostMessage> from_;
};

void StagedLink::add_memory(std::span<std::byte> memory) {
  blocks_.push_back({memory, link_.allocate_pinned(memory.size())});
}

std::span<std::byte> StagedLink::on_cpu(std::span<std::byte> bytes) const {
  for (const Block& block : blocks_) {
    if (bytes.data() < block.gpu.data() || bytes.data() >= block.gpu.data() + block.gpu.size()) {
      continue;
    }
    return block.cpu.subspan(static_cast<std::size_t>(bytes.data() - block.gpu.data()),
                             bytes.size());
  }
  throw Error(ErrorCode::kInvalidArgument, "a message that is not in memory of the link");
}

// The wait covers the copies of earlier messages out of the CPU's memory too, into which the engine
// is about to write.
std::unique_ptr<HostTransfer> StagedLink::start(std::span<const HostMessage> to,
                                                std::span<const HostMessage> from,
                                                std::uint32_t call) {
  const c10::Stream stream = streams_->current();
  std::vector<HostMessage> sent;
  std::vector<HostMessage> received;
  for (const HostMessage& each : to) {
    sent.push_back({each.peer, on_cpu(each.bytes)});
    local_.copy(sent.back().bytes.data(), each.bytes.data(), each.bytes.size(),
                stream.native_handle());
  }
  for (const HostMessage& each : from) received.push_back({each.peer, on_cpu(each.bytes)});
  wait_for_stream(streams_, stream, kLongestTimeout);
  return std::make_unique<Transfer>(*this, link_.start_of_gpu(sent, received, call),
                                    std::vector<HostMessage>(from.begin(), from.end()));
}

}  // namespace symm
