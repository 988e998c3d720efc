#include "symm_mem/bootstrap/unix_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "kernels/core/error.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

// More than is ever sent, so that surplus descriptors are seen rather than cut off.
constexpr std::size_t kDescriptorRoom = 4;

GuardedDescriptor open_socket() {
  GuardedDescriptor socket = GuardedDescriptor::open(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket.valid()) throw_system_error("opening a unix socket", errno);
  return socket;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorCode::kInvalidArgument, "socket path is longer than ",
                sizeof(address.sun_path) - 1, " bytes: ", path);
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Takes ownership of every descriptor in the control data before anything can throw.
std::array<FileDescriptor, kDescriptorRoom> take_descriptors(msghdr& header, std::size_t& count) {
  std::array<FileDescriptor, kDescriptorRoom> taken;
  count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      FileDescriptor owned(fd);
      if (count < taken.size()) taken[count++] = std::move(owned);
    }
  }
  return taken;
}

}  // namespace

GuardedDescriptor listen_on(const std::string& path, int backlog) {
  GuardedDescriptor socket = open_socket();
  const sockaddr_un address = address_of(path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), backlog) != 0) {
    throw_system_error("listening on " + path, errno);
  }
  return socket;
}

GuardedDescriptor accept_waiting(int listener) {
  GuardedDescriptor socket = GuardedDescriptor::open(
      [&] { return ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (!socket.valid() && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    throw_system_error("accepting a connection of a peer", errno);
  }
  return socket;
}

ConnectResult connect_to(const std::string& path) {
  const sockaddr_un address = address_of(path);
  ConnectResult result{open_socket(), 0};
  while (::connect(result.socket.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    result.error = errno;
    break;
  }
  return result;
}

bool is_nobody_there(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == ECONNRESET;
}

std::optional<uid_t> peer_uid(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      bytes != sizeof(credentials)) {
    return std::nullopt;
  }
  return credentials.uid;
}

bool is_hung_up(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

SocketStatus send_frame(int socket, std::span<const std::uint8_t> bytes, int descriptor) {
  iovec data{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  for (;;) {
    if (::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return SocketStatus::kDone;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return SocketStatus::kWouldBlock;
    if (errno == ETOOMANYREFS) return SocketStatus::kTooManyUnderWay;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return SocketStatus::kClosed;
    throw_system_error("sending " + std::to_string(bytes.size()) + " bytes to a peer", errno);
  }
}

ReceivedFrame receive_frame(int socket, std::size_t max_bytes) {
  ReceivedFrame frame;
  frame.bytes.resize(max_bytes);
  iovec data{frame.bytes.data(), frame.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorRoom * sizeof(int))> control{};
  msghdr header{};
  bool reset_seen = false;
  ssize_t got = -1;
  do {
    header = msghdr{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // A peer that closed with unread data leaves a reset in front of what it had sent: the frames
    // are still there behind it.
    if (got < 0 && errno == ECONNRESET && !reset_seen) {
      reset_seen = true;
      errno = EINTR;
    }
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    frame.bytes.clear();
    if (errno == EAGAIN) return frame;
    if (errno != ECONNRESET) throw_system_error("receiving from a peer", errno);
    frame.status = SocketStatus::kClosed;
    return frame;
  }
  std::size_t count = 0;
  std::array<FileDescriptor, kDescriptorRoom> taken = take_descriptors(header, count);
  frame.bytes.resize(static_cast<std::size_t>(got));
  frame.status = got == 0 && is_hung_up(socket) ? SocketStatus::kClosed : SocketStatus::kDone;
  const bool cut = (header.msg_flags & MSG_CTRUNC) != 0;
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    frame.problem = "a frame of more than " + std::to_string(max_bytes) + " bytes";
  } else if (count > 1) {
    frame.problem = "more than one descriptor";
  } else if (cut) {
    frame.problem = "a descriptor that could not be taken: " + describe_system_error(EMFILE);
    frame.out_of_descriptors = true;
  } else if (count == 1) {
    frame.descriptor = std::move(taken[0]);
  }
  return frame;
}

}  // namespace symm
