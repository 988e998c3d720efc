// A filter of system calls that forbids this process to read others', as containers may have it. It
// cannot be taken off again: for processes that a test has forked.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <stdexcept>

namespace symm::test {

// From now on process_vm_readv of any thread fails with EPERM or, `deadly`, ends the process by
// SIGSYS.
inline void deny_process_reads(bool deadly = false) {
  const unsigned int action =
      deadly ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | static_cast<unsigned int>(EPERM);
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(rules) / sizeof(rules[0]), rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    throw std::runtime_error("no filter of system calls can be set");
  }
}

}  // namespace symm::test
