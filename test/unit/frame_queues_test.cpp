#include "symm_mem/bootstrap/frame_queues.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "symm_mem/process/process_identity.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"

namespace symm {
namespace {

using test::expect_error;

constexpr std::size_t kWorld = 3;

// Rank 0's side of a mesh whose peers are ends of sockets here.
class FrameQueuesTest : public testing::Test {
 protected:
  FrameQueuesTest() : sockets_(kWorld), records_(kWorld) {
    for (std::size_t peer = 1; peer < kWorld; ++peer) {
      std::array<int, 2> ends{};
      EXPECT_EQ(
          ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
      sockets_[peer] = GuardedDescriptor(FileDescriptor(ends[0]));
      theirs_[peer] = FileDescriptor(ends[1]);
      records_[peer].process = own_process();
      records_[peer].process.pid = static_cast<std::int64_t>(1000 + peer);
      records_[peer].process.pid_namespace += 1;  // of which nothing is visible here
    }
  }

  std::string error_of_next(std::size_t peer) {
    FrameQueues queues("group: ", names_, sockets_, records_);
    const auto error = test::error_of([&] { queues.next_exchange(peer); });
    return error ? error->what() : "";
  }

  const RankNames names_;
  std::vector<GuardedDescriptor> sockets_;
  std::vector<PeerRecord> records_;
  std::array<FileDescriptor, kWorld> theirs_;
};

TEST_F(FrameQueuesTest, NamesWhoClosed) {
  EXPECT_EQ(error_of_next(1), "");
  theirs_[1].reset();
  EXPECT_EQ(error_of_next(1), "group: rank 1 (pid 1001) ended or closed its group");
  theirs_[2].reset();
  EXPECT_EQ(error_of_next(1),
            "group: rank 1 (pid 1001), rank 2 (pid 1002) ended or closed its group");
}

// Rank 1 saw rank 2 die, and gave up. The kernel has not come to the socket between 2 and 0 yet, as
// where a busy machine lets a process wait in the middle of its end.
TEST_F(FrameQueuesTest, NamesWhoDiesBeforeAllItsSocketsAreClosed) {
  ProcessIdentity& dying = records_[2].process;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const FileDescriptor out(pipe[0]);
  const FileDescriptor in(pipe[1]);
  test::ForkedChild child([&] {
    const ProcessIdentity own = own_process();
    return ::write(in.get(), &own, sizeof(own)) == sizeof(own) ? 0 : 1;
  });
  ASSERT_EQ(::read(out.get(), &dying, sizeof(dying)), static_cast<ssize_t>(sizeof(dying)));
  EXPECT_EQ(child.wait(), 0);
  theirs_[1].reset();
  EXPECT_EQ(error_of_next(1), text_of("group: rank 1 (pid 1001), rank 2 (pid ", dying.pid,
                                      ") ended or closed its group"));
}

}  // namespace
}  // namespace symm
