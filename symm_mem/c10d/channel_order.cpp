#include "symm_mem/c10d/channel_order.hpp"

namespace symm {

void ChannelOrder::run(const c10::Stream& stream, std::uint64_t capture, int channel,
                       const std::function<void()>& launch) {
  const std::lock_guard lock(mutex_);
  std::optional<Use>& last = channels_[channel][capture == 0 ? 0 : 1];
  if (last && last->capture == capture && last->stream != stream) last->done.block(stream);
  launch();
  if (last) {
    last->stream = stream;
    last->capture = capture;
  } else {
    last.emplace(Use{stream, capture, c10::Event(stream.device_type())});
  }
  last->done.record(stream);
}

}  // namespace symm
