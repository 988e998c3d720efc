// A directory of mode 0700 for one socket, removed with everything this owner knows of in it.
//
// NOTE [Directories of killed processes]
// The owner keeps a lock (flock) on its directory, which the kernel lets go of when the process
// ends, however it ends. A process that makes its first directory removes those whose owner is
// gone, so that a rank killed during set-up leaves nothing behind for long. Such locks hold within
// one host, and $TMPDIR may be on a network file system: names are "symm-mesh-", eight digits of
// the host's boot id, "-" and six random characters, and only those of this boot are looked at.
// Where the boot id is unknown none is removed.
#pragma once

#include <string>

#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

class PrivateDirectory {
 public:
  // Made under $TMPDIR where that is absolute, usable and short enough for a socket address, else
  // under /tmp. Throws Error(kSystem). Local.
  PrivateDirectory();
  // Removes the socket and the directory; does nothing in a forked child.
  ~PrivateDirectory();

  std::string socket_path() const;

 private:
  std::string path_;
  GuardedDescriptor lock_;
};

}  // namespace symm
