// Fuzz target of all that parses a peer's bytes: the Store record and the socket frames. Whatever
// is accepted must encode to the same bytes again.
//
//   clang++ -std=c++20 -g -fsanitize=fuzzer,address,undefined -I. test/fuzz/peer_record_fuzz.cpp
//       symm_mem/bootstrap/peer_record.cpp symm_mem/bootstrap/peer_frame.cpp kernels/core/error.cpp
// With -DSYMM_FUZZ_MAIN and any compiler it is a program that runs random inputs; its argument is
// their number.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"

namespace {

void require_same(std::span<const std::uint8_t> input, const std::vector<std::uint8_t>& encoded) {
  if (encoded.size() != input.size() ||
      std::memcmp(encoded.data(), input.data(), input.size()) != 0) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> input(data, size);
  try {
    require_same(input, symm::encode_peer_record(symm::parse_peer_record(input, 1)));
  } catch (const symm::Error&) {
    // The one way in which a record may be refused.
  }
  if (const auto hello = symm::parse_hello(input)) require_same(input, symm::encode_hello(*hello));
  if (const auto frame = symm::parse_exchange(input)) {
    require_same(input, symm::encode_exchange(frame->position, frame->has_descriptor,
                                              frame->message, frame->kind));
  }
  return 0;
}

#ifdef SYMM_FUZZ_MAIN

#include <cstdio>
#include <random>

namespace {

std::vector<std::vector<std::uint8_t>> seeds() {
  symm::PeerRecord record;
  record.rank = 1;
  record.world_size = 2;
  record.process.pid = 1234;
  record.boot_id = "01234567-89ab-cdef-0123-456789abcdef";
  record.socket_path = "/tmp/symm-abc123/s";
  record.payload = {1, 2, 3};
  return {symm::encode_peer_record(record),
          symm::encode_hello({1, {}}),
          symm::encode_exchange(5, true, std::vector<std::uint8_t>(40, 7)),
          symm::encode_exchange(9, false, std::vector<std::uint8_t>(3, 1), symm::FrameKind::kPost),
          symm::encode_exchange({symm::FrameStream::kSymmetricMemory, 2}, true,
                                std::vector<std::uint8_t>(9, 3), symm::FrameKind::kPost),
          {}};
}

// A few changed bytes, another length, or both, so that inputs get past the first checks.
void mutate(std::vector<std::uint8_t>& input, std::mt19937_64& random) {
  if (random() % 3 == 0) input.resize(random() % (input.size() + 64));
  for (std::uint64_t changes = random() % 4; changes > 0 && !input.empty(); --changes) {
    input[random() % input.size()] = static_cast<std::uint8_t>(random());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::atol(argv[1]) : 100000;
  std::mt19937_64 random(1);
  const auto corpus = seeds();
  for (long i = 0; i < count; ++i) {
    std::vector<std::uint8_t> input = corpus[static_cast<std::size_t>(i) % corpus.size()];
    mutate(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld inputs\n", count);
  return 0;
}

#endif
