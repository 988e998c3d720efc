#include "symm_mem/bootstrap/host_identity.hpp"

#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "symm_mem/process/system_error.hpp"

namespace symm {

Nonce random_nonce() {
  Nonce nonce{};
  // So few bytes come all at once.
  while (::getrandom(nonce.data(), nonce.size(), 0) < 0) {
    if (errno != EINTR) throw_system_error("getting 16 random bytes", errno);
  }
  return nonce;
}

bool same_nonce(const Nonce& a, const Nonce& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::string host_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  constexpr std::size_t kUuidCharacters = 36;
  return id.size() == kUuidCharacters ? id : std::string();
}

std::uint64_t mount_namespace_id() {
  struct stat status {};
  return ::stat("/proc/self/ns/mnt", &status) == 0 ? status.st_ino : 0;
}

}  // namespace symm
