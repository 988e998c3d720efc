// Storages of another allocator that are made symmetric where they stand. That allocator is the
// test here: pages of shared memory, mapped side by side, as a GPU's allocator maps its handles.
#include "symm_mem/c10d/user_buffer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <symm/SymmetricTensor.hpp>
#include <utility>
#include <vector>

#include "symm_mem/c10d/contiguous_view.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "test/libtorch/group_ranks.hpp"

namespace symm::test {
namespace {

// Of int32: so many that collectives read them in place where they may.
constexpr std::int64_t kCount = 300'000;
// So large that the elements stand in five of them or more.
const std::size_t kBlock = 60 * host_runtime().granularity();

// One range of addresses, with chunks of the given numbers of blocks in it.
class Chunks {
 public:
  explicit Chunks(const std::vector<std::size_t>& blocks) {
    const std::size_t all = std::accumulate(blocks.begin(), blocks.end(), std::size_t{0});
    range_ = host_runtime().reserve(all * kBlock);
    std::size_t at = 0;
    for (const std::size_t count : blocks) {
      memory_.push_back(host_runtime().allocate(count * kBlock));
      mappings_.push_back(host_runtime().map_at(memory_.back(), range_, at));
      at += count * kBlock;
    }
  }

  // All of them, the buffer beginning at `start` of the first.
  ChunkedMemory from(std::size_t start) const { return {memory_, start}; }
  std::weak_ptr<PhysicalMemory> first() const { return memory_.front(); }
  std::byte* base() const { return range_->base(); }

  // Puts other memory at the same addresses.
  void exchange() {
    std::size_t at = 0;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const std::size_t bytes = memory_[i]->bytes();
      mappings_[i].reset();
      memory_[i] = host_runtime().allocate(bytes);
      mappings_[i] = host_runtime().map_at(memory_[i], range_, at);
      at += bytes;
    }
  }

 private:
  std::shared_ptr<AddressRange> range_;
  std::vector<std::shared_ptr<PhysicalMemory>> memory_;
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

// A tensor of its own storage, `start` bytes into the chunks.
at::Tensor tensor_in(const Chunks& chunks, std::size_t start, std::int64_t count = kCount) {
  return torch::from_blob(
      chunks.base() + start, {count}, [](void*) {}, torch::kInt);
}

c10::intrusive_ptr<c10d::ProcessGroup> group() { return c10d::resolve_process_group(kGroup); }

void all_reduce(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  group()->allreduce(tensors)->wait();
}

at::Tensor sum_of_patterns(int ranks) {
  at::Tensor sum = pattern({kCount}, 0);
  for (int rank = 1; rank < ranks; ++rank) sum += pattern({kCount}, rank);
  return sum;
}

// How each of three ranks has its memory cut, and where its buffer begins.
const std::vector<std::vector<std::size_t>> kBlocks = {{10}, {1, 1, 2, 1, 1, 1}, {3, 4}};
const std::vector<std::size_t> kStarts = {128, 3968, 0};

TEST(UserBuffer, MakesAStorageSymmetricWhereItStands) {
  run_ranks(3, [](int rank) {
    register_symmetric_memory();
    const Chunks chunks(kBlocks[static_cast<std::size_t>(rank)]);
    const std::size_t start = kStarts[static_cast<std::size_t>(rank)];
    at::Tensor tensor = tensor_in(chunks, start);
    tensor.copy_(pattern({kCount}, rank));
    EXPECT_FALSE(is_symmetric(tensor, kGroup));
    UserBuffer user_buffer(tensor, chunks.from(start));
    EXPECT_EQ(user_buffer.offset(), 0);
    EXPECT_EQ(user_buffer.bytes(), 4 * kCount);
    EXPECT_FALSE(is_symmetric(tensor, std::nullopt)) << "before it is shared";
    EXPECT_EQ(user_buffer.share(kGroup), "");
    EXPECT_TRUE(is_symmetric(tensor, kGroup));
    EXPECT_TRUE(is_symmetric(tensor.slice(0, 7, 90, 3), kGroup));

    const SymmetricTensor part(tensor.narrow(0, 3000, 2000), kGroup);
    part.barrier();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(part.remote(peer).equal(pattern({kCount}, peer).narrow(0, 3000, 2000)));
    }
    part.barrier(1);
    part.remote((rank + 1) % 3)[1999].fill_(-rank);
    part.barrier(2);
    EXPECT_EQ(tensor[4999].item<int>(), -((rank + 2) % 3));

    tensor.copy_(pattern({kCount}, rank));
    all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(sum_of_patterns(3)));

    const std::uint64_t mapped = mappings_made();
    EXPECT_EQ(user_buffer.share(kGroup), "");
    EXPECT_EQ(mappings_made(), mapped) << "the second time maps nothing";
  });
}

// The addresses get other memory as soon as the tensor is freed: whoever took the old mapping for
// them would reduce what stood there before.
TEST(UserBuffer, EndsWithTheStorage) {
  run_ranks(3, [](int rank) {
    register_symmetric_memory();
    Chunks chunks({4, 4});
    at::Tensor tensor = tensor_in(chunks, 0);
    tensor.fill_(-5);
    ASSERT_EQ(UserBuffer(tensor, chunks.from(0)).share(kGroup), "");
    at::Tensor alias = tensor.view({2, -1});
    tensor.reset();
    EXPECT_TRUE(is_symmetric(alias, kGroup)) << "the storage lives on";
    alias.reset();
    const std::weak_ptr<PhysicalMemory> old = chunks.first();
    chunks.exchange();
    EXPECT_FALSE(old.expired()) << "peers may still read it";

    tensor = tensor_in(chunks, 0);
    EXPECT_FALSE(is_symmetric(tensor, std::nullopt));
    tensor.copy_(pattern({kCount}, rank));
    group()->barrier()->wait();
    all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(sum_of_patterns(3)));

    SymmetricTensor::empty({5}, torch::dtype(torch::kInt), kGroup);
    EXPECT_TRUE(old.expired()) << "the next rendezvous lets go of it";

    // The same addresses again, with their new memory.
    ASSERT_EQ(UserBuffer(tensor, chunks.from(0)).share(kGroup), "");
    const SymmetricTensor shared(tensor, kGroup);
    tensor.copy_(pattern({kCount}, rank));
    shared.barrier();
    EXPECT_TRUE(shared.remote((rank + 1) % 3).equal(pattern({kCount}, (rank + 1) % 3)));
    shared.barrier();
  });
}

TEST(UserBuffer, AStorageThatMovesIsNoLongerThere) {
  run_ranks(2, [](int rank) {
    register_symmetric_memory();
    const Chunks chunks({8});
    at::Tensor tensor = tensor_in(chunks, 0);
    ASSERT_EQ(UserBuffer(tensor, chunks.from(0)).share(kGroup), "");
    const at::Tensor elsewhere = torch::zeros({kCount}, torch::kInt);
    const at::DataPtr before =
        tensor.storage().set_data_ptr(at::DataPtr(elsewhere.data_ptr(), at::Device(at::kCPU)));
    EXPECT_FALSE(is_symmetric(tensor, std::nullopt));
    EXPECT_FALSE(is_symmetric(tensor_in(chunks, 0), std::nullopt));
    tensor.copy_(pattern({kCount}, rank));
    all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(sum_of_patterns(2)));
  });
}

// A program that exchanges memory under a living tensor and adopts it again.
TEST(UserBuffer, OfOtherMemoryAtTheSamePlaceTakesThePlaceOfTheOldOne) {
  run_ranks(2, [](int rank) {
    register_symmetric_memory();
    Chunks chunks({4, 4});
    at::Tensor tensor = tensor_in(chunks, 0);
    UserBuffer first(tensor, chunks.from(0));
    ASSERT_EQ(first.share(kGroup), "");
    tensor.fill_(-5);
    group()->barrier()->wait();
    chunks.exchange();
    ASSERT_EQ(UserBuffer(tensor, chunks.from(0)).share(kGroup), "");
    tensor.copy_(pattern({kCount}, rank));
    const SymmetricTensor shared(tensor, kGroup);
    shared.barrier();
    EXPECT_TRUE(shared.remote(1 - rank).equal(pattern({kCount}, 1 - rank)));
    shared.barrier(1);
    all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(sum_of_patterns(2)));
  });
}

TEST(UserBuffer, ThatTheRanksCannotShareLeavesNothing) {
  run_ranks(3, [](int rank) {
    register_symmetric_memory();
    const Chunks chunks({4, 4});
    const at::Tensor tensor = tensor_in(chunks, 0, rank == 1 ? kCount - 1 : kCount);
    UserBuffer user_buffer(tensor, chunks.from(0));
    const std::string why = user_buffer.share(kGroup);
    EXPECT_NE(why.find("same number of bytes"), std::string::npos) << why;
    EXPECT_NE(why.find(std::to_string(4 * kCount - 4)), std::string::npos) << why;
    EXPECT_FALSE(is_symmetric(tensor, std::nullopt));
    const auto shared = SymmetricTensor::empty({4}, torch::dtype(torch::kInt), kGroup);
    shared.local().fill_(rank);
    shared.barrier();
    EXPECT_EQ(shared.remote((rank + 1) % 3)[3].item<int>(), (rank + 1) % 3);
    shared.barrier();
  });
}

TEST(UserBuffer, HasAContiguousViewWhereTheStartsAllowIt) {
  run_ranks(2, [](int rank) {
    register_symmetric_memory();
    const Chunks chunks({4, 4});
    const std::size_t start = 256 + (rank == 0 ? 0 : kBlock);
    const at::Tensor tensor = tensor_in(chunks, start);
    tensor.copy_(pattern({kCount}, rank));
    ASSERT_EQ(UserBuffer(tensor, chunks.from(start)).share(kGroup), "");
    const at::Tensor view = contiguous_view(tensor.narrow(0, 100, 5000), kGroup);
    group()->barrier()->wait();
    ASSERT_EQ(view.sizes(), (std::vector<std::int64_t>{2, 5000}));
    for (int peer = 0; peer < 2; ++peer) {
      EXPECT_TRUE(view[peer].equal(pattern({kCount}, peer).narrow(0, 100, 5000)));
    }
    group()->barrier()->wait();

    const Chunks odd({4, 4});
    const std::size_t odd_start = rank == 0 ? 0 : 256;
    const at::Tensor other = tensor_in(odd, odd_start);
    ASSERT_EQ(UserBuffer(other, odd.from(odd_start)).share(kGroup), "");
    try {
      contiguous_view(other, kGroup);
      ADD_FAILURE() << "nothing was raised";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("torch_symm.empty"), std::string::npos)
          << error.what();
    }
  });
}

TEST(UserBuffer, IsForGpusAlone) {
  EXPECT_FALSE(UserBuffer::of(torch::ones({100})));
  EXPECT_FALSE(UserBuffer::of(torch::ones({0})));
}

}  // namespace
}  // namespace symm::test
