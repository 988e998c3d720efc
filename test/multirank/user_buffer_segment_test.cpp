// Rendezvous of memory that is made of several chunks, where one rank fails at some step of it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/passing_runtime.hpp"
#include "test/support/segment_ranks.hpp"

namespace symm {
namespace {

using test::connect_all;
using test::expect_error;
using test::kPage;
using test::wrong_words;

// Which call of one rank's runtime fails.
struct Step {
  std::string name;
  int call = 0;  // from 0
};

class FailingRuntime final : public test::PassingRuntime {
 public:
  explicit FailingRuntime(Step step = {}) : step_(std::move(step)) {}

  MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) override {
    pass("export", exports_);
    return PassingRuntime::export_memory(memory, kind);
  }
  std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) override {
    pass("import", imports_);
    return PassingRuntime::import_memory(std::move(handle), bytes);
  }
  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    pass("reserve", reserves_);
    return PassingRuntime::reserve(bytes);
  }
  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    pass("map", maps_);
    return PassingRuntime::map_at(std::move(memory), std::move(range), offset);
  }

 private:
  void pass(const std::string& name, int& calls) {
    if (calls++ == step_.call && name == step_.name) {
      throw Error(ErrorCode::kSystem, name + " failed on purpose");
    }
  }

  Step step_;
  int exports_ = 0;
  int imports_ = 0;
  int reserves_ = 0;
  int maps_ = 0;
};

// A buffer of `bytes` bytes that begins `start` bytes into chunks of `pages` pages.
class Buffer {
 public:
  Buffer(const std::vector<std::size_t>& pages, std::size_t start, std::size_t bytes)
      : start_(start), bytes_(bytes) {
    const std::size_t all = std::accumulate(pages.begin(), pages.end(), std::size_t{0});
    range_ = host_runtime().reserve(all * kPage);
    std::size_t at = 0;
    for (const std::size_t count : pages) {
      memory_.chunks.push_back(host_runtime().allocate(count * kPage));
      mappings_.push_back(host_runtime().map_at(memory_.chunks.back(), range_, at));
      at += count * kPage;
    }
    memory_.start = start;
  }

  std::shared_ptr<LocalSegment> user_buffer_of(DeviceRuntime& runtime) const {
    return LocalSegment::from_user_buffer(runtime, range_->base() + start_, bytes_, memory_,
                                          [] { return true; });
  }

 private:
  std::size_t start_;
  std::size_t bytes_;
  ChunkedMemory memory_;
  std::shared_ptr<AddressRange> range_;
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

const std::size_t kBytes = 4 * kPage + 64;

// Of rank 0, 1, 2: the numbers of chunks differ, so that some ranks have none left in late rounds.
std::vector<std::unique_ptr<Buffer>> buffers() {
  std::vector<std::unique_ptr<Buffer>> all;
  all.push_back(std::make_unique<Buffer>(std::vector<std::size_t>{8}, 128, kBytes));
  all.push_back(
      std::make_unique<Buffer>(std::vector<std::size_t>{1, 1, 1, 1, 1, 1}, kPage - 8, kBytes));
  all.push_back(std::make_unique<Buffer>(std::vector<std::size_t>{2, 3, 1}, 0, kBytes));
  return all;
}

class UserBufferSegments : public ::testing::TestWithParam<Step> {};

// The failing rank is 1, so that one before it and one after it must hear of it.
TEST_P(UserBufferSegments, ThatOneRankCannotShareAreHadByNoneAndTheMeshGoesOn) {
  const auto meshes = connect_all(3);
  const auto memory = buffers();
  std::vector<std::unique_ptr<FailingRuntime>> runtimes;
  for (int rank = 0; rank < 3; ++rank) {
    runtimes.push_back(std::make_unique<FailingRuntime>(rank == 1 ? GetParam() : Step{}));
  }
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Segment::rendezvous(*meshes[r], memory[r]->user_buffer_of(*runtimes[r]), 0, test::kMeshTimeout,
                        nullptr);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    expect_error(errors[rank], ErrorCode::kSystem, {GetParam().name + " failed on purpose"});
    if (rank != 1) expect_error(errors[rank], ErrorCode::kSystem, {"rank 1 failed"});
  }
  test::Segments segments(3);
  test::run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] = Segment::rendezvous(*meshes[r], memory[r]->user_buffer_of(*runtimes[r]), 1,
                                      test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  for (const auto& segment : segments) {
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(wrong_words(segment->base(peer), kBytes, peer), 0u) << peer;
    }
  }
}

// Rank 1 exports six chunks, and imports one of rank 0 and three of rank 2, which it maps there.
INSTANTIATE_TEST_SUITE_P(Steps, UserBufferSegments,
                         ::testing::Values(Step{"export", 0}, Step{"export", 1}, Step{"export", 5},
                                           Step{"import", 0}, Step{"import", 2}, Step{"import", 3},
                                           Step{"reserve", 0}, Step{"map", 0}, Step{"map", 2}));

TEST(UserBufferSegment, NeedsChunksThatHoldTheBuffer) {
  ChunkedMemory memory;
  std::byte place{};
  const auto from_user_buffer = [&](std::size_t bytes) {
    return test::error_of([&] {
      LocalSegment::from_user_buffer(host_runtime(), &place, bytes, memory, [] { return true; });
    });
  };
  expect_error(from_user_buffer(1), ErrorCode::kInvalidArgument, {"from_user_buffer", "got 0"});
  memory.chunks = {host_runtime().allocate(1), host_runtime().allocate(1)};
  memory.start = kPage + 1;
  EXPECT_FALSE(from_user_buffer(kPage - 1));
  expect_error(from_user_buffer(kPage), ErrorCode::kInvalidArgument,
               {std::to_string(kPage + 1), std::to_string(kPage), std::to_string(2 * kPage)});
}

}  // namespace
}  // namespace symm
