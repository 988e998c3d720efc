#include "kernels/cpu/streaming.hpp"

#include <cstdint>
#include <cstring>

namespace symm {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;

using Word [[gnu::vector_size(16)]] = long long;

// A whole line at once, which the processor combines to one write. `destination` is aligned to it.
inline void stream_line(std::byte* destination, const std::byte* source) {
  constexpr int kWords = kLine / sizeof(Word);
  Word words[kWords];
  std::memcpy(words, source, kLine);
  auto* const to = reinterpret_cast<Word*>(destination);
  for (int i = 0; i < kWords; ++i) asm volatile("movntdq %1, %0" : "=m"(to[i]) : "x"(words[i]));
}

// What was streamed comes before later stores.
inline void end_of_stream() { asm volatile("sfence" ::: "memory"); }

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
  end_of_stream();
}

#else

void streaming_copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

#endif

}  // namespace symm
