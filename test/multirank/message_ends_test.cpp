// A send and a recv that do not belong together: another dtype, another kind of device. Every rank
// is a thread with a fake GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/host/mailbox_engine.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;

constexpr std::size_t kSmall = 16;
constexpr std::size_t kLarge = 1 << 20;
// Far below the time-out of the groups.
constexpr milliseconds kAtOnce{5'000};

struct End {
  TransferOp op;
  bool on_device = false;
};

// Gives one end of a message and waits for it: the error of that, or of the group's next call where
// this end was done.
std::optional<Error> error_of_end(DeviceRank& rank, End end) {
  std::vector<std::byte> data(end.op.bytes);
  end.op.data = data.data();
  const auto give = [&] {
    if (end.on_device) {
      rank.engine().transfer({&end.op, 1}, {FakeGpu::plain_stream(), {}});
      if (const auto failure = rank.failure()) throw Error(*failure);
    } else {
      MailboxEngine& messages = rank.communicator.point_to_point();
      messages.wait(*messages.start({end.op, {}}, {}), {});
      rank.communicator.run(CollectiveArgs{});
    }
  };
  return error_of(give);
}

class MessageEndsTest : public test::DeviceRanksTest {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) gpus_[i].hold_kernels = true;
  }

  void expect_mismatch(const End& send, const End& recv, bool warm, const std::string& words) {
    const auto start = std::chrono::steady_clock::now();
    run_group(2, [&](DeviceRank& rank) {
      if (warm) rank.engine().connect_all({});
      rank.meet();
      End end = rank.number() == 0 ? send : recv;
      end.op.peer = 1 - rank.number();
      end.op.is_send = rank.number() == 0;
      end.op.tag = 7;
      expect_error(error_of_end(rank, end), ErrorCode::kMismatch, {"tag 7 differ in " + words});
      rank.meet();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
  }
};

TEST_F(MessageEndsTest, OnTheHostAndOnADeviceNameBothAtOnce) {
  for (const std::size_t bytes : {std::size_t{0}, kSmall, kLarge}) {
    for (const bool warm : {false, true}) {
      SCOPED_TRACE(std::to_string(bytes) + (warm ? " warm" : " cold"));
      expect_mismatch({{.bytes = bytes}, false}, {{.bytes = bytes}, true}, warm,
                      "device: rank 0 sends from cpu, rank 1 receives on cuda");
      expect_mismatch({{.bytes = bytes}, true}, {{.bytes = bytes}, false}, warm,
                      "device: rank 0 sends from cuda, rank 1 receives on cpu");
    }
  }
}

TEST_F(MessageEndsTest, OfTwoDtypesNameBothOnADevice) {
  expect_mismatch({{.bytes = kSmall, .dtype = Dtype::kFloat32}, true},
                  {{.bytes = kSmall, .dtype = Dtype::kInt64}, true}, true,
                  "dtype: rank 0 sends float32, rank 1 receives int64");
}

// The group goes on; a small send is done before its recv is there.
TEST_F(MessageEndsTest, OfTwoDtypesNameBothOnTheHost) {
  for (const std::size_t bytes : {kSmall, kLarge}) {
    run_group(2, [&](DeviceRank& rank) {
      const bool is_send = rank.number() == 0;
      std::vector<std::byte> data(bytes, std::byte{static_cast<unsigned char>(rank.number())});
      MailboxEngine& messages = rank.communicator.point_to_point();
      const auto transfer = [&](Dtype dtype) {
        const TransferOp op{data.data(), bytes, 7, 1 - rank.number(), is_send, dtype};
        messages.wait(*messages.start({op, {}}, {}), {});
      };
      const auto error = error_of([&] { transfer(is_send ? Dtype::kFloat32 : Dtype::kInt64); });
      if (is_send && bytes == kSmall) {
        EXPECT_FALSE(error);
      } else {
        expect_error(error, ErrorCode::kMismatch,
                     {"tag 7 differ in dtype: rank 0 sends float32, rank 1 receives int64"});
      }
      transfer(Dtype::kFloat16);
      EXPECT_EQ(data[bytes - 1], std::byte{0});
      rank.communicator.run(CollectiveArgs{});
    });
  }
}

// Messages of one tag on two devices, in one order; tags in any order; and what has no ordinal.
TEST_F(MessageEndsTest, ThatBelongTogetherAreLeftAlone) {
  for (int i = 0; i < 2; ++i) gpus_[i].hold_kernels = false;
  run_group(2, [](DeviceRank& rank) {
    const int peer = 1 - rank.number();
    rank.engine().connect_all({});
    std::vector<std::byte> data(kSmall);
    MailboxEngine& messages = rank.communicator.point_to_point();
    const auto on_host = [&](std::int64_t tag, bool is_send, int from) {
      messages.wait(*messages.start({{data.data(), kSmall, tag, from, is_send}, {}}, {}), {});
    };
    const auto on_device = [&](std::int64_t tag, bool is_send, bool captured = false) {
      const TransferOp op{data.data(), kSmall, tag, peer, is_send};
      rank.engine().transfer(
          {&op, 1},
          {captured ? FakeGpu::captured_stream() : FakeGpu::plain_stream(), {}, captured});
    };
    const bool sends = rank.number() == 0;
    for (int round = 0; round < 30; ++round) {
      on_host(1, sends, peer);
      on_device(1, sends);
      on_device(2 + round, sends);
    }
    // The tags in the two orders.
    for (int i = 0; i < 3; ++i) on_device(sends ? 100 + i : 102 - i, sends);
    for (int i = 0; i < 3; ++i) on_host(sends ? 102 - i : 100 + i, sends, peer);
    // From any rank, and captured: which message that meets is not known when it is started.
    on_host(200, sends, sends ? peer : kAnySource);
    on_host(200, sends, peer);
    on_device(300, sends, !sends);
    on_device(300, sends);
    on_host(300, sends, peer);
    rank.meet();
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(rank.communicator.failure()) << rank.communicator.failure()->what();
    rank.communicator.run(CollectiveArgs{});
    rank.meet();
  });
}

// An end that is refused after the peers have heard of it does not count.
TEST_F(MessageEndsTest, ThatAreRefusedAreTakenBack) {
  gpus_[1].refuse_imports = true;
  run_group(2, [](DeviceRank& rank) {
    std::vector<std::byte> data(kSmall);
    static_cast<void>(rank.engine());
    rank.meet();
    if (rank.number() == 1) {
      const TransferOp op{data.data(), kSmall, 7, 0, false};
      expect_error(error_of([&] {
                     rank.engine().transfer({&op, 1}, {FakeGpu::plain_stream(), {}});
                   }),
                   ErrorCode::kUnsupported, {"no peer access"});
    }
    rank.meet();
    const TransferOp op{data.data(), kSmall, 7, 1 - rank.number(), rank.number() == 0};
    MailboxEngine& messages = rank.communicator.point_to_point();
    messages.wait(*messages.start({op, {}}, {}), {});
    std::this_thread::sleep_for(milliseconds(30));
    rank.communicator.run(CollectiveArgs{});
    rank.meet();
  });
}

}  // namespace
}  // namespace symm
