// Streaming copies give memcpy's bytes, at every alignment, and leave their neighbours alone.
#include "kernels/cpu/streaming.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/core/atomics.hpp"

namespace symm {
namespace {

TEST(StreamingCopy, EqualsMemcpyAtEveryAlignment) {
  constexpr std::size_t kRoom = 1024;
  constexpr std::byte kGuard{0x5a};
  std::vector<std::byte> source(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(i * 31 + 7);
  for (const std::size_t bytes : {0u, 1u, 15u, 63u, 64u, 65u, 127u, 128u, 129u, 500u}) {
    for (std::size_t to = 0; to < 65; ++to) {
      for (const std::size_t from : {0u, 1u, 17u, 63u}) {
        std::vector<std::byte> got(kRoom, kGuard);
        std::vector<std::byte> expected = got;
        std::memcpy(expected.data() + to, source.data() + from, bytes);
        streaming_copy(got.data() + to, source.data() + from, bytes);
        ASSERT_EQ(got, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

// Who sees the flag that follows sees the data.
TEST(StreamingCopy, ComesBeforeALaterRelease) {
  constexpr std::size_t kBytes = 64 * 1024;
  std::vector<std::byte> data(kBytes);
  std::uint64_t round = 0;
  constexpr std::uint64_t kRounds = 500;
  std::thread reader([&] {
    for (std::uint64_t seen = 1; seen <= kRounds; ++seen) {
      while (load_acquire(&round) != 2 * seen - 1) std::this_thread::yield();
      EXPECT_EQ(data.front(), static_cast<std::byte>(seen));
      EXPECT_EQ(data.back(), static_cast<std::byte>(seen));
      store_release(&round, 2 * seen);
    }
  });
  std::vector<std::byte> source(kBytes);
  for (std::uint64_t turn = 1; turn <= kRounds; ++turn) {
    std::memset(source.data(), static_cast<int>(turn & 0xff), kBytes);
    streaming_copy(data.data(), source.data(), kBytes);
    store_release(&round, 2 * turn - 1);
    while (load_acquire(&round) != 2 * turn) std::this_thread::yield();
  }
  reader.join();
}

}  // namespace
}  // namespace symm
