// A forked child whose body's result is its exit status. Fork only while this process has no other
// thread.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

namespace symm::test {

class ForkedChild {
 public:
  explicit ForkedChild(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      int status = 254;
      try {
        status = body();
      } catch (...) {
        status = 255;
      }
      ::_exit(status);
    }
  }
  ~ForkedChild() {
    if (pid_ > 0) {
      kill();
      wait();
    }
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  pid_t pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  // Returns when a signal has stopped the child.
  void await_stop() const { ::waitpid(pid_, nullptr, WUNTRACED); }

  // The exit status, or minus the signal that ended the child.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

}  // namespace symm::test
