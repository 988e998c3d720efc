// When multimem carries out a call: never without every fact that it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/plan/multimem.hpp"

namespace symm {
namespace {

constexpr CollectiveKind kReducing[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter};
constexpr CollectiveKind kMoving[] = {CollectiveKind::kAllGather, CollectiveKind::kBroadcast};

// A call for which everything is in place.
MultimemFacts good(CollectiveKind kind) {
  MultimemFacts facts;
  facts.kind = kind;
  facts.dtype = Dtype::kBFloat16;
  facts.op = ReduceOp::kSum;
  facts.bytes = 1 << 20;
  facts.has_multicast = true;
  facts.architecture = 90;
  facts.input_offset = 48;
  facts.output_offset = 16;
  facts.same_bits = false;
  return facts;
}

void expect_refused(const MultimemFacts& facts, const std::vector<std::string>& words) {
  const std::string text = multimem_refusal(facts);
  EXPECT_EQ(text.find("multimem cannot carry out this " + std::string(collective_name(facts.kind)) +
                      ": "),
            0U)
      << text;
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
  }
}

std::vector<CollectiveKind> all_four() {
  return {kReducing[0], kReducing[1], kMoving[0], kMoving[1]};
}

TEST(MultimemPlan, TakesWhatItCan) {
  for (const CollectiveKind kind : all_four()) {
    EXPECT_EQ(multimem_refusal(good(kind)), "") << collective_name(kind);
  }
}

TEST(MultimemPlan, OtherCollectivesHaveNone) {
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const std::vector<CollectiveKind> four = all_four();
    if (std::find(four.begin(), four.end(), kind) != four.end()) continue;
    expect_refused(good(kind), {"all_reduce, reduce_scatter, all_gather and broadcast"});
  }
}

TEST(MultimemPlan, NeedsMulticastAndTheInstructionsOnEveryRank) {
  for (const CollectiveKind kind : all_four()) {
    MultimemFacts facts = good(kind);
    facts.has_multicast = false;
    expect_refused(facts, {"not every rank has a multicast address"});
    facts = good(kind);
    facts.architecture = 89;
    expect_refused(facts, {"compute capability 9.0", "one has 8.9"});
    facts.architecture = 100;
    EXPECT_EQ(multimem_refusal(facts), "");
  }
}

TEST(MultimemPlan, ReductionsNeedTheSameBitsWaivedAndMovesDoNot) {
  for (const CollectiveKind kind : all_four()) {
    MultimemFacts facts = good(kind);
    facts.same_bits = true;
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter) {
      expect_refused(facts, {"same bits", "waived", "deterministic=False", "SYMM_DETERMINISTIC=0"});
    } else {
      EXPECT_EQ(multimem_refusal(facts), "");
    }
  }
}

// The whole table of dtype and operator against a list written out here.
TEST(MultimemPlan, ReducesWhatTheSwitchCan) {
  const std::vector<std::pair<Dtype, ReduceOp>> can = {
      {Dtype::kFloat32, ReduceOp::kSum},  {Dtype::kFloat16, ReduceOp::kSum},
      {Dtype::kFloat16, ReduceOp::kMin},  {Dtype::kFloat16, ReduceOp::kMax},
      {Dtype::kBFloat16, ReduceOp::kSum}, {Dtype::kBFloat16, ReduceOp::kMin},
      {Dtype::kBFloat16, ReduceOp::kMax}};
  int accepted = 0;
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const std::pair<Dtype, ReduceOp> pair{static_cast<Dtype>(d), static_cast<ReduceOp>(o)};
      const bool expected = std::find(can.begin(), can.end(), pair) != can.end();
      for (const CollectiveKind kind : kReducing) {
        MultimemFacts facts = good(kind);
        facts.dtype = pair.first;
        facts.op = pair.second;
        if (expected) {
          EXPECT_EQ(multimem_refusal(facts), "");
          ++accepted;
        } else {
          expect_refused(facts, {std::string(reduce_op_name(pair.second)) + " of " +
                                 std::string(dtype_name(pair.first))});
        }
      }
      for (const CollectiveKind kind : kMoving) {
        MultimemFacts facts = good(kind);
        facts.dtype = pair.first;
        facts.op = pair.second;
        EXPECT_EQ(multimem_refusal(facts), "");
      }
    }
  }
  EXPECT_EQ(accepted, 14);
}

TEST(MultimemPlan, NeedsPiecesOfSixteenBytes) {
  for (const CollectiveKind kind : all_four()) {
    MultimemFacts facts = good(kind);
    facts.input_offset = 40;
    expect_refused(facts, {"input's offset", "multiple of 16", "got 40"});
    facts = good(kind);
    facts.output_offset = 2;
    expect_refused(facts, {"output's offset", "got 2"});
    facts = good(kind);
    facts.bytes = (1 << 20) + 6;
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter) {
      expect_refused(facts, {"size of a share", "got 1048582"});
    } else {
      EXPECT_EQ(multimem_refusal(facts), "") << "a message may have a tail";
    }
  }
}

}  // namespace
}  // namespace symm
