#include "kernels/cpu/streaming.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace symm {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;

// A whole line at once, which the processor combines to one write.
inline void stream_line(std::byte* destination, const std::byte* source) {
  constexpr int kWords = kLine / sizeof(__m128i);
  __m128i words[kWords];
  for (int i = 0; i < kWords; ++i) {
    words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
  }
  for (int i = 0; i < kWords; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination) + i, words[i]);
  }
}

}  // namespace

void streaming_copy(void* destination, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const std::size_t before = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes < before + kLine) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, before);
  std::size_t done = before;
  for (; done + kLine <= bytes; done += kLine) stream_line(to + done, from + done);
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}

#else

void streaming_copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

#endif

}  // namespace symm
