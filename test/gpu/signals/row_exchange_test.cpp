// Row exchanges between ranks that share GPU 0, against a model that walks through all ranks' rows
// one after the other. Launches return at once, so one thread plays every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/protocol/row_exchange.hpp"
#include "test/gpu/signals/signal_rig.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Words = std::vector<std::int64_t>;

constexpr int kChannel = 3;
constexpr std::uint8_t kUntouched = 0xc3;

struct Case {
  RowExchangeForm form;
  int world;
  int experts;
  int align;
  std::size_t row_bytes;
  std::int64_t most;  // rows of a slot
};

// Memory of the GPU; `skew` bytes behind an aligned address.
class Memory {
 public:
  explicit Memory(std::size_t bytes, std::size_t skew = 0) : skew_(skew), bytes_(bytes) {
    SYMM_GPU_CHECK(gpuMalloc(&base_, bytes + skew + 1));
  }
  ~Memory() { (void)gpuFree(base_); }
  Memory(Memory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), skew_(other.skew_), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(base_) + skew_; }
  template <class T>
  std::vector<T> read() const {
    return read_gpu<T>(data(), bytes_ / sizeof(T));
  }

 private:
  void* base_ = nullptr;
  std::size_t skew_;
  std::size_t bytes_;
};

struct Rank {
  Memory input, output, splits, results, scratch;
};

class Exchange {
 public:
  Exchange(SignalRig& rig, const Case& shape) : rig_(rig), case_(shape) {
    slots_ = shape.world * shape.experts;
    // Gaps of a combine's input, and every expert's alignment.
    rows_ = slots_ * (shape.most + 2) + 5;
    output_rows_ = slots_ * (shape.most + shape.align) + 3;
    const auto bytes = [&](std::int64_t rows) {
      return static_cast<std::size_t>(rows) * shape.row_bytes;
    };
    for (int rank = 0; rank < shape.world; ++rank) {
      const std::size_t skew = shape.row_bytes % 16 == 0 ? 0 : static_cast<std::size_t>(rank) % 16;
      const std::size_t words = static_cast<std::size_t>(slots_) * sizeof(std::int64_t);
      ranks_.push_back({Memory(bytes(rows_), skew), Memory(bytes(output_rows_)), Memory(2 * words),
                        Memory(2 * words),
                        Memory(rig.kernels(rank).scratch_words(shape.experts) * 8)});
      inputs_.push_back(ranks_.back().input.data());
      splits_.push_back(ranks_.back().splits.data());
    }
  }

  // New rows and splits; where the host knows them.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    rows_of_.clear();
    counts_.clear();
    begins_.clear();
    for (int rank = 0; rank < case_.world; ++rank) {
      Bytes rows(static_cast<std::size_t>(rows_) * case_.row_bytes);
      for (std::uint8_t& byte : rows) byte = static_cast<std::uint8_t>(random());
      Words counts(static_cast<std::size_t>(slots_));
      for (std::int64_t& count : counts) {
        count = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random()) % (case_.most + 1);
      }
      rows_of_.push_back(rows);
      counts_.push_back(counts);
      begins_.push_back(begins_of(counts));
    }
    upload();
  }
  void set_count(int rank, int slot, std::int64_t count) {
    counts_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)] = count;
    begins_[static_cast<std::size_t>(rank)] = begins_of(counts_[static_cast<std::size_t>(rank)]);
    upload();
  }

  void launch(int rank, const SignalOptions& options) {
    const Rank& mine = ranks_[static_cast<std::size_t>(rank)];
    rig_.kernels(rank).exchange_rows(
        rig_.pads(),
        {.form = case_.form,
         .experts = case_.experts,
         .major_align = case_.align,
         .input_rows = rows_,
         .output_rows = output_rows_,
         .row_bytes = case_.row_bytes,
         .inputs = inputs_,
         .splits = splits_,
         .output = mine.output.data(),
         .results = reinterpret_cast<std::int64_t*>(mine.results.data()),
         .scratch = reinterpret_cast<std::int64_t*>(mine.scratch.data())},
        options);
  }
  void launch_all() {
    for (int rank = 0; rank < case_.world; ++rank) launch(rank, rig_.options(rank, kChannel));
  }

  void expect_right() const {
    for (int rank = 0; rank < case_.world; ++rank) {
      Bytes output(static_cast<std::size_t>(output_rows_) * case_.row_bytes, kUntouched);
      Words results(2 * static_cast<std::size_t>(slots_));
      expect_of(rank, output, results);
      const Rank& mine = ranks_[static_cast<std::size_t>(rank)];
      ASSERT_EQ(mine.results.read<std::int64_t>(), results) << "splits of rank " << rank;
      ASSERT_TRUE(mine.output.read<std::uint8_t>() == output) << "rows of rank " << rank;
    }
  }
  void expect_untouched() const {
    for (const Rank& rank : ranks_) {
      const auto output = rank.output.read<std::uint8_t>();
      EXPECT_EQ(std::count(output.begin(), output.end(), kUntouched), std::ssize(output));
    }
  }
  std::int64_t rows() const { return rows_; }

 private:
  Words begins_of(const Words& counts) const {
    Words begins(counts.size());
    std::int64_t next = case_.form == RowExchangeForm::kCombine ? 5 : 0;
    for (std::size_t slot = 0; slot < counts.size(); ++slot) {
      begins[slot] = next;
      next += counts[slot] + (case_.form == RowExchangeForm::kCombine ? 2 : 0);
    }
    return begins;
  }
  void upload() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      write_gpu(ranks_[rank].input.data(), rows_of_[rank]);
      Words numbers = counts_[rank];
      numbers.insert(numbers.end(), begins_[rank].begin(), begins_[rank].end());
      write_gpu(ranks_[rank].splits.data(), numbers);
      SYMM_GPU_CHECK(gpuMemset(ranks_[rank].output.data(), kUntouched,
                               static_cast<std::size_t>(output_rows_) * case_.row_bytes));
    }
    SYMM_GPU_CHECK(gpuDeviceSynchronize());
  }

  // By the words of row_exchange.hpp's table, a form at a time.
  void expect_of(int rank, Bytes& output, Words& results) const {
    std::int64_t next = 0;
    std::size_t out_slot = 0;
    const auto put = [&](int sender, int slot) {
      const std::int64_t count =
          counts_[static_cast<std::size_t>(sender)][static_cast<std::size_t>(slot)];
      const std::int64_t begin =
          begins_[static_cast<std::size_t>(sender)][static_cast<std::size_t>(slot)];
      const Bytes& rows = rows_of_[static_cast<std::size_t>(sender)];
      const auto row = static_cast<std::ptrdiff_t>(case_.row_bytes);
      std::copy(rows.begin() + begin * row, rows.begin() + (begin + count) * row,
                output.begin() + next * row);
      results[out_slot] = count;
      results[static_cast<std::size_t>(slots_) + out_slot++] = next;
      next += count;
    };
    if (case_.form == RowExchangeForm::kCombine) {
      for (int sender = 0; sender < case_.world; ++sender) {
        for (int expert = 0; expert < case_.experts; ++expert)
          put(sender, expert * case_.world + rank);
      }
      return;
    }
    for (int expert = 0; expert < case_.experts; ++expert) {
      const std::int64_t begin = next;
      for (int sender = 0; sender < case_.world; ++sender)
        put(sender, rank * case_.experts + expert);
      if (case_.align == 0) continue;
      std::int64_t taken = case_.align;
      while (taken < next - begin) taken += case_.align;
      next = begin + taken;
    }
  }

  SignalRig& rig_;
  const Case case_;
  int slots_;
  std::int64_t rows_;
  std::int64_t output_rows_;
  std::vector<Rank> ranks_;
  std::vector<std::byte*> inputs_;
  std::vector<std::byte*> splits_;
  std::vector<Bytes> rows_of_;
  std::vector<Words> counts_;
  std::vector<Words> begins_;
};

class RowExchangeTest : public GpuTest, public testing::WithParamInterface<Case> {};

TEST_P(RowExchangeTest, MovesWhatTheSplitsSay) {
  SignalRig rig(*runtime_, GetParam().world);
  Exchange exchange(rig, GetParam());
  for (unsigned seed = 1; seed <= 5; ++seed) {
    exchange.fill(seed);
    exchange.launch_all();
    rig.finish();
    exchange.expect_right();
  }
  rig.expect_at_rest();
}

TEST_P(RowExchangeTest, ManyInARowLeaveTheSameRows) {
  SignalRig rig(*runtime_, GetParam().world);
  Exchange exchange(rig, GetParam());
  exchange.fill(7);
  for (int round = 0; round < 40; ++round) exchange.launch_all();
  rig.finish();
  exchange.expect_right();
  rig.expect_at_rest();
}

TEST_P(RowExchangeTest, AGraphReplaysWithOtherSplits) {
  SignalRig rig(*runtime_, GetParam().world);
  Exchange exchange(rig, GetParam());
  std::vector<SignalGraph> graphs;
  for (int rank = 0; rank < rig.world(); ++rank) {
    graphs.emplace_back(rig.stream(rank),
                        [&] { exchange.launch(rank, rig.options(rank, kChannel)); });
  }
  for (unsigned seed = 20; seed < 28; ++seed) {
    exchange.fill(seed);
    for (int rank = 0; rank < rig.world(); ++rank) {
      graphs[static_cast<std::size_t>(rank)].launch(rig.stream(rank));
    }
    rig.finish();
    exchange.expect_right();
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, RowExchangeTest,
                         testing::Values(Case{RowExchangeForm::kVector, 1, 1, 0, 16, 50},
                                         Case{RowExchangeForm::kVector, 2, 1, 0, 4, 1000},
                                         Case{RowExchangeForm::kVector, 3, 1, 0, 1, 77},
                                         Case{RowExchangeForm::kVector, 8, 1, 0, 4096, 64},
                                         Case{RowExchangeForm::kDispatch, 2, 3, 1, 6, 40},
                                         Case{RowExchangeForm::kDispatch, 4, 33, 8, 2, 9},
                                         Case{RowExchangeForm::kDispatch, 8, 4, 16, 14336, 5},
                                         Case{RowExchangeForm::kDispatch, 3, 700, 1, 8, 3},
                                         Case{RowExchangeForm::kCombine, 2, 5, 0, 3, 30},
                                         Case{RowExchangeForm::kCombine, 4, 16, 0, 512, 20},
                                         Case{RowExchangeForm::kCombine, 8, 2, 0, 16, 300}));

class WrongRowExchangeTest : public GpuTest {
 protected:
  // Every rank's next operation must say the same, and nothing may be written.
  void expect_refused(SignalRig& rig, Exchange& exchange, const std::vector<std::string>& words) {
    exchange.launch_all();
    SYMM_GPU_CHECK(gpuDeviceSynchronize());
    for (int rank = 0; rank < rig.world(); ++rank) {
      const auto error = error_of([&] { rig.kernels(rank).check(); });
      expect_error(error, ErrorCode::kMismatch, words);
      expect_error(error_of([&] { exchange.launch(rank, rig.options(rank, kChannel)); }),
                   ErrorCode::kMismatch, words);
    }
    exchange.expect_untouched();
    rig.expect_at_rest();
  }
};

TEST_F(WrongRowExchangeTest, ANegativeSplitEndsTheSignalsOfAllRanks) {
  SignalRig rig(*runtime_, 3);
  Exchange exchange(rig, {RowExchangeForm::kVector, 3, 1, 0, 8, 20});
  exchange.fill(1);
  exchange.set_count(2, 1, -4);
  expect_refused(rig, exchange, {"all_to_all_vdev: in_splits of rank 2", "0 or more, got -4 at 1"});
}

TEST_F(WrongRowExchangeTest, RowsBeyondTheInputEndThem) {
  SignalRig rig(*runtime_, 2);
  Exchange exchange(rig, {RowExchangeForm::kDispatch, 2, 3, 4, 8, 20});
  exchange.fill(1);
  exchange.set_count(1, 4, exchange.rows() + 1);
  expect_refused(rig, exchange,
                 {"all_to_all_vdev_2d: in_splits of rank 1", "rows of input, got", "at 4"});
}

TEST_F(WrongRowExchangeTest, AnOutputThatIsFullEndsThem) {
  SignalRig rig(*runtime_, 2);
  Exchange exchange(rig, {RowExchangeForm::kCombine, 2, 1, 0, 8, 20});
  exchange.fill(1);
  exchange.set_count(0, 1, 35);
  exchange.set_count(1, 1, 30);
  exchange.set_count(0, 0, 0);
  exchange.set_count(1, 0, 0);
  expect_refused(rig, exchange, {"all_to_all_vdev_2d_offset: out", "65 rows that rank 1 gets"});
}

TEST_F(WrongRowExchangeTest, ARankThatDoesNotComeIsNamed) {
  SignalRig rig(*runtime_, 2);
  Exchange exchange(rig, {RowExchangeForm::kVector, 2, 1, 0, 8, 20});
  exchange.fill(1);
  exchange.launch(0, rig.options(0, kChannel, std::chrono::milliseconds(200)));
  SYMM_GPU_CHECK(gpuDeviceSynchronize());
  expect_error(error_of([&] { rig.kernels(0).check(); }), ErrorCode::kTimeout,
               {"all_to_all_vdev on channel 3", "200 ms", "rank 0 waited for rank 1"});
  exchange.expect_untouched();
}

TEST_F(WrongRowExchangeTest, MoreExpertsThanCanBeCountedAreRefused) {
  SignalRig rig(*runtime_, 2);
  Exchange exchange(rig, {RowExchangeForm::kVector, 2, 1, 0, 8, 20});
  const std::vector<std::byte*> two(2);
  for (const std::int32_t experts : {0, -1, 1 << 30}) {
    expect_error(error_of([&] {
                   rig.kernels(0).exchange_rows(rig.pads(),
                                                {.experts = experts, .inputs = two, .splits = two},
                                                rig.options(0, kChannel));
                 }),
                 ErrorCode::kInvalidArgument, {"experts a rank, got", std::to_string(experts)});
  }
}

}  // namespace
}  // namespace symm::test
