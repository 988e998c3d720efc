// SymmetricTensor as a LibTorch program uses it.
#include <symm/SymmetricTensor.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <string>
#include <vector>

#include "test/libtorch/expect_raises.hpp"
#include "test/libtorch/group_ranks.hpp"

namespace symm::test {
namespace {

using std::chrono::milliseconds;

TEST(SymmetricTensorTest, PeersAreReadAndWrittenAndOneTensorShowsAll) {
  run_ranks(3, [](int rank) {
    const auto shared = SymmetricTensor::empty({4, 5}, torch::dtype(torch::kInt), kGroup);
    EXPECT_EQ(shared.provider(), "native");
    ASSERT_EQ(shared.world_size(), 3);
    ASSERT_EQ(shared.rank(), rank);
    shared.local().copy_(pattern({4, 5}, rank));
    shared.barrier();
    const at::Tensor all = shared.contiguous_view();
    ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{3, 4, 5}));
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(shared.remote(peer).equal(pattern({4, 5}, peer))) << rank << " of " << peer;
      EXPECT_TRUE(all[peer].equal(pattern({4, 5}, peer))) << rank << " of " << peer;
    }
    EXPECT_TRUE(shared.remote(rank).is_same(shared.local()));
    EXPECT_EQ(shared.signal_pad(rank).scalar_type(), torch::kUInt32);
    EXPECT_GE(shared.signal_pad(rank).numel(), 3);

    // Rows 2 and 3 alone, as a tensor that existed already.
    const SymmetricTensor rows(shared.local().narrow(0, 2, 2), kGroup);
    EXPECT_TRUE(rows.remote((rank + 1) % 3).equal(pattern({4, 5}, (rank + 1) % 3).narrow(0, 2, 2)));
    shared.barrier(1);

    shared.remote((rank + 1) % 3)[0].fill_(-rank);
    shared.put_signal((rank + 1) % 3, 2);
    shared.wait_signal((rank + 2) % 3, 2);
    EXPECT_TRUE(shared.local()[0].equal(torch::full({5}, -((rank + 2) % 3), torch::kInt)));
    EXPECT_TRUE(shared.local()[1].equal(pattern({4, 5}, rank)[1]));
  });
}

TEST(SymmetricTensorTest, TensorsWithoutElementsOrDimensions) {
  run_ranks(2, [](int rank) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {1}, {0}, {3, 0}}) {
      const auto shared = SymmetricTensor::empty(sizes, torch::dtype(torch::kDouble), kGroup);
      shared.local().fill_(rank + 0.25);
      shared.barrier();
      EXPECT_TRUE(shared.remote(1 - rank).equal(torch::full(sizes, 1.25 - rank, torch::kDouble)));
      shared.barrier();
    }
  });
}

TEST(SymmetricTensorTest, WrongUseIsRefusedAndTheGroupGoesOn) {
  run_ranks(2, [](int rank) {
    const auto shared = SymmetricTensor::empty({4, 5}, torch::dtype(torch::kFloat), kGroup);
    for (const int wrong : {-1, 2}) {
      const std::vector<std::string> words = {"0 to 1", std::to_string(wrong)};
      expect_raises<c10::ValueError>([&] { shared.remote(wrong); }, words);
      expect_raises<c10::ValueError>([&] { shared.signal_pad(wrong); }, words);
      expect_raises<c10::ValueError>([&] { shared.put_signal(wrong); }, words);
      expect_raises<c10::ValueError>([&] { shared.wait_signal(wrong); }, words);
    }
    expect_raises<c10::ValueError>([&] { SymmetricTensor(shared.local().t(), kGroup); },
                                   {"contiguous", "[5, 4]", "[1, 5]"});
    expect_raises<c10::ValueError>([&] { SymmetricTensor(torch::ones({7}), kGroup); },
                                   {"SymmetricTensor.empty", "[7]", "ordinary memory on cpu"});
    expect_raises<c10::NotImplementedError>([&] { shared.multicast_pointer(); }, {"multicast"});
    expect_raises<c10::DistBackendError>([&] { shared.wait_signal(1 - rank, 3, milliseconds(30)); },
                                         {"rank " + std::to_string(1 - rank), "30 ms"});
    shared.local().fill_(rank);
    shared.barrier();
    EXPECT_TRUE(shared.remote(1 - rank).equal(torch::full({4, 5}, 1.0F - rank)));
  });
}

}  // namespace
}  // namespace symm::test
