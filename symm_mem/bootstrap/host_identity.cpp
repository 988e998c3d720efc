#include "symm_mem/bootstrap/host_identity.hpp"

#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
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

bool is_plain_host_id(std::string_view id) {
  return id.size() <= kMaxHostId && std::ranges::all_of(id, [](char c) {
           return c == '-' || c == '_' || c == '.' || (c >= '0' && c <= '9') ||
                  (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
         });
}

std::string host_id() {
  const char* const given = std::getenv("SYMM_HOST_ID");
  if (given == nullptr) return host_boot_id();
  std::string id(given);
  if (id.empty() || !is_plain_host_id(id)) {
    throw Error(ErrorCode::kInvalidArgument,
                "SYMM_HOST_ID: expected 1 to 64 letters, digits, '-', '_' and '.', got '", id, "'");
  }
  return id;
}

std::uint64_t mount_namespace_id() {
  struct stat status {};
  return ::stat("/proc/self/ns/mnt", &status) == 0 ? status.st_ino : 0;
}

}  // namespace symm
