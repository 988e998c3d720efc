// Reads of a c10d FileStore that end.
//
// NOTE [Torn files]
// A process that is killed inside FileStore::set() may leave the beginning of an entry at the end
// of the file. torch's reader then waits for the rest without end and regards no time-out. So while
// this process reads, it holds the file's lock, which keeps writers out, and has seen that the file
// consists of whole entries.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

class FileStoreHold {
 public:
  // Holds nothing where there is no FileStore below `store`. Throws Error(kSystem) for a torn file.
  // Local; waits for a writer, which takes microseconds.
  explicit FileStoreHold(c10d::Store& store);

 private:
  GuardedDescriptor file_;
};

}  // namespace symm
