// Unix sockets as the peer mesh needs them: SOCK_SEQPACKET, non-blocking, closed on exec and in
// forked children. A frame arrives whole or not at all. All functions are local, thread safe and
// do not block.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "symm_mem/process/file_descriptor.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

// Throws Error(kSystem).
GuardedDescriptor listen_on(const std::string& path, int backlog);

// Invalid when nobody waits. Throws Error(kSystem).
GuardedDescriptor accept_waiting(int listener);

// `error` is 0, or the errno of connect(); EAGAIN says that the listener's queue is full. Throws
// Error(kSystem) when no socket can be made.
struct ConnectResult {
  GuardedDescriptor socket;
  int error = 0;
};
ConnectResult connect_to(const std::string& path);
// Whether that error says that nobody listens at the path.
bool is_nobody_there(int error);

// The effective user that connected or that listened; empty when the kernel does not say.
std::optional<uid_t> peer_uid(int socket);

// True when the other side has closed. Unread frames do not matter.
bool is_hung_up(int socket);

// kTooManyUnderWay: Linux lets a user without CAP_SYS_RESOURCE have about RLIMIT_NOFILE descriptors
// on sockets that nobody has read yet; the socket itself may have room.
enum class SocketStatus { kDone, kWouldBlock, kTooManyUnderWay, kClosed };

// `descriptor` may be -1; without one it is never kTooManyUnderWay. Throws Error(kSystem).
SocketStatus send_frame(int socket, std::span<const std::uint8_t> bytes, int descriptor = -1);

// With kDone either `problem` is empty and the frame is whole, or it says what was wrong:
// truncated, more than one descriptor, or a descriptor that this process has no room for. The
// frame is used up in each case, and descriptors that are not handed out are closed.
struct ReceivedFrame {
  SocketStatus status = SocketStatus::kWouldBlock;
  std::vector<std::uint8_t> bytes;
  FileDescriptor descriptor;
  std::string problem;
  bool out_of_descriptors = false;
};
ReceivedFrame receive_frame(int socket, std::size_t max_bytes);

}  // namespace symm
