// GPU memory between processes. The suites are named DeathTest so that GoogleTest runs them before
// all others: a process that has used CUDA must not fork ranks. Both ranks are children, and the
// parent never touches the GPU here.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/gpu.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using test::gpu_words;
using test::kMeshTimeout;
using test::read_gpu;
using test::write_gpu;
using Word = std::uint64_t;

constexpr int kNoGpu = 77;  // exit status of a child that found none

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

struct Rank {
  int rank;
  BootstrapMesh& mesh;
  GpuRuntime& runtime;
  KeyValueStore& store;

  int other() const { return 1 - rank; }
  void meet(std::uint64_t sequence) const {
    mesh.exchange(sequence, std::vector<std::uint8_t>{1}, -1, kMeshTimeout, nullptr);
  }
};

// What a child runs: rank r on GPU r, or on the only one.
int run_rank(const std::string& directory, int rank, const std::function<int(const Rank&)>& body) {
  try {
    test::set_queues(test::kQueuesOfAChild);
    if (test::no_gpu_reason()) return kNoGpu;
    int count = 0;
    SYMM_GPU_CHECK(SYMM_GPU_NAME(GetDeviceCount)(&count));
    SYMM_GPU_CHECK(gpuSetDevice(rank % count));
    test::FileStore store(directory);
    const auto mesh = BootstrapMesh::connect(store, test::mesh_config(rank, 2));
    return body({rank, *mesh, test::gpu_library().runtime(rank % count), store});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

class GpuProcessesDeathTest : public ::testing::Test {
 protected:
  void run_both(const std::function<int(const Rank&)>& body, int expected_of_second = 0) {
    const auto child = [&](int rank) {
      return [this, rank, &body] { return run_rank(directory_.path(), rank, body); };
    };
    test::ForkedChild first(child(0));
    test::ForkedChild second(child(1));
    const int first_status = first.wait();
    const int second_status = second.wait();
    if (first_status == kNoGpu && second_status == kNoGpu) {
      GTEST_SKIP() << "no GPU is visible to the ranks";
    }
    EXPECT_EQ(first_status, 0);
    EXPECT_EQ(second_status, expected_of_second);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(GpuProcessesDeathTest, PostedMemoryIsReadAndWrittenByThePeer) {
  run_both([](const Rank& self) {
    const std::size_t bytes = 2 * self.runtime.granularity();
    const auto memory = self.runtime.allocate(bytes);
    const auto mapping = self.runtime.map(memory);
    write_gpu(mapping->base(), gpu_words(self.rank, bytes / 8));
    self.mesh.post(1, {}, self.runtime.export_descriptor(*memory).get());
    BootstrapMesh::Received post = self.mesh.take(self.other(), 1, kMeshTimeout, nullptr);
    const auto peer =
        self.runtime.map(self.runtime.import_memory(std::move(post.descriptor), bytes));
    require(read_gpu<Word>(peer->base(), bytes / 8) == gpu_words(self.other(), bytes / 8),
            "the peer's words");
    self.meet(0);
    write_gpu(peer->base() + 4096, gpu_words(10 + self.rank, 64));
    self.meet(1);
    require(read_gpu<Word>(mapping->base() + 4096, 64) == gpu_words(10 + self.other(), 64),
            "what the peer wrote");
    require(read_gpu<Word>(mapping->base(), 512) == gpu_words(self.rank, 512),
            "what the peer did not write");
    self.meet(2);
    return 0;
  });
}

TEST_F(GpuProcessesDeathTest, SegmentsMeetAndShowAContiguousView) {
  run_both([](const Rank& self) {
    const std::size_t bytes = self.runtime.granularity() + 4096;
    const auto local = LocalSegment::allocate(self.runtime, bytes);
    write_gpu(local->base(), gpu_words(self.rank, bytes / 8));
    const auto segment = Segment::rendezvous(self.mesh, local, 0, kMeshTimeout, nullptr);
    self.meet(1);
    require(segment->mapped_bytes() == 2 * self.runtime.granularity(), "mapped bytes");
    const Segment::ContiguousView view = segment->contiguous_view();
    for (int rank = 0; rank < 2; ++rank) {
      const auto expected = gpu_words(rank, bytes / 8);
      require(read_gpu<Word>(segment->base(rank), bytes / 8) == expected, "a rank's buffer");
      require(read_gpu<Word>(view.base + static_cast<std::size_t>(rank) * view.stride_bytes,
                             bytes / 8) == expected,
              "a rank's part of the view");
    }
    self.meet(2);
    return 0;
  });
}

TEST_F(GpuProcessesDeathTest, DifferentSizesRaiseOnBothRanks) {
  run_both([](const Rank& self) {
    const auto local = LocalSegment::allocate(
        self.runtime, static_cast<std::size_t>(1 + self.rank) * self.runtime.granularity());
    const auto error =
        test::error_of([&] { Segment::rendezvous(self.mesh, local, 0, kMeshTimeout, nullptr); });
    require(error && error->code() == ErrorCode::kMismatch, "a mismatch");
    return 0;
  });
}

TEST_F(GpuProcessesDeathTest, MemoryStaysWhenItsOwnerHasEnded) {
  run_both(
      [](const Rank& self) {
        const std::size_t bytes = self.runtime.granularity();
        if (self.rank == 1) {
          const auto memory = self.runtime.allocate(bytes);
          const auto mapping = self.runtime.map(memory);
          write_gpu(mapping->base(), gpu_words(1, bytes / 8));
          self.mesh.post(1, {}, self.runtime.export_descriptor(*memory).get());
          test::wait_for_key(self.store, "mapped");
          return ::raise(SIGKILL);
        }
        BootstrapMesh::Received post = self.mesh.take(1, 1, kMeshTimeout, nullptr);
        const auto peer =
            self.runtime.map(self.runtime.import_memory(std::move(post.descriptor), bytes));
        self.store.set("mapped", {1});
        // Returns with kPeerLost as soon as the other process is gone.
        const auto gone = test::error_of([&] { self.mesh.take(1, 2, kMeshTimeout, nullptr); });
        require(gone && gone->code() == ErrorCode::kPeerLost, "the end of the other process");
        require(read_gpu<Word>(peer->base(), bytes / 8) == gpu_words(1, bytes / 8),
                "the words of a process that has ended");
        return 0;
      },
      -SIGKILL);
}

// A child of a process that uses CUDA must neither use nor free what its parent holds.
TEST_F(GpuProcessesDeathTest, AForkedChildLeavesItsParentsMemoryAlone) {
  run_both([](const Rank& self) {
    auto memory = self.runtime.allocate(1);
    auto mapping = self.runtime.map(memory);
    write_gpu(mapping->base(), gpu_words(3, 100));
    test::ForkedChild child([&] {
      const auto error = test::error_of([&] { self.runtime.allocate(1); });
      if (!error || error->code() != ErrorCode::kUnsupported) return 1;
      if (std::string(error->what()).find("forked child") == std::string::npos) return 2;
      mapping.reset();
      memory.reset();
      return 0;
    });
    require(child.wait() == 0, "the child's status");
    require(read_gpu<Word>(mapping->base(), 100) == gpu_words(3, 100), "the parent's memory");
    return 0;
  });
}

}  // namespace
}  // namespace symm
