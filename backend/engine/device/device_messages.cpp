#include "backend/engine/device/device_messages.hpp"

#include "kernels/core/atomics.hpp"

namespace symm {

void DeviceMessages::note(const TransferOp& op) {
  const std::lock_guard lock(mutex_);
  Direction& channel = peers_[static_cast<std::size_t>(op.peer)]
                             [static_cast<std::size_t>(tag_channel_of(op.tag))][op.is_send ? 0 : 1];
  ++channel.count;
  channel.last[channel.count % kNotes] = op;
}

DeviceProgress DeviceMessages::progress(const TransferOp& op) const {
  if (trace_.captured() || op.peer == group_.rank()) return {};
  const auto peer = static_cast<std::size_t>(op.peer);
  const auto channel = static_cast<std::size_t>(tag_channel_of(op.tag));
  const std::size_t direction = op.is_send ? 0 : 1;
  const DevicePage& page = trace_.own_page();
  const std::lock_guard lock(mutex_);
  return {&page.messages_entered[peer][channel][direction],
          &page.messages_completed[peer][channel][direction],
          peers_[peer][channel][direction].count};
}

bool DeviceMessages::all_ended() const {
  const std::lock_guard lock(mutex_);
  const DevicePage& page = trace_.own_page();
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (std::size_t group = 0; group < kTagChannels; ++group) {
      for (std::size_t direction = 0; direction < 2; ++direction) {
        const std::uint64_t ended = load_acquire(&page.messages_completed[peer][group][direction]);
        if (ended < peers_[peer][group][direction].count) return false;
      }
    }
  }
  return true;
}

std::string DeviceMessages::needing(int peer) const {
  const auto other = static_cast<std::size_t>(peer);
  const auto self = static_cast<std::size_t>(group_.rank());
  const DevicePage& mine = trace_.own_page();
  const DevicePage& theirs = trace_.page(peer);
  for (int group = 0; group < kTagChannels; ++group) {
    for (int direction = 0; direction < 2; ++direction) {
      const std::uint64_t ended = load_acquire(&mine.messages_completed[other][group][direction]);
      const std::uint64_t begun = load_acquire(&mine.messages_entered[other][group][direction]);
      if (begun <= ended) continue;
      if (load_acquire(&theirs.messages_completed[self][group][1 - direction]) >= begun) continue;
      return describe(peer, group, direction, ended + 1);
    }
  }
  return "";
}

std::string DeviceMessages::name(int peer, std::uint64_t number) const {
  const DevicePage& page = trace_.own_page();
  for (int group = 0; group < kTagChannels; ++group) {
    for (int direction = 0; direction < 2; ++direction) {
      const auto other = static_cast<std::size_t>(peer);
      if (load_acquire(&page.messages_entered[other][group][direction]) >= number &&
          load_acquire(&page.messages_completed[other][group][direction]) + 1 == number) {
        return describe(peer, group, direction, number);
      }
    }
  }
  return "a message with " + group_.rank_name(peer);
}

std::string DeviceMessages::describe(int peer, int tag_channel, int direction,
                                     std::uint64_t number) const {
  std::string text = direction == 0 ? "send to " : "recv from ";
  text += group_.rank_name(peer) + " (message " + std::to_string(number) + " of its tag channel";
  const std::lock_guard lock(mutex_);
  const Direction& channel =
      peers_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(tag_channel)]
            [static_cast<std::size_t>(direction)];
  if (!trace_.captured() && number <= channel.count && channel.count - number < kNotes) {
    const TransferOp& note = channel.last[number % kNotes];
    text += ", tag " + std::to_string(note.tag) + ", " + std::to_string(note.bytes) + " bytes";
  }
  return text + ")";
}

}  // namespace symm
