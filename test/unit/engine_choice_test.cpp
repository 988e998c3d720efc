// Which engine carries bytes between hosts.
#include "backend/engine/hosts/engine_choice.hpp"

#include <gtest/gtest.h>

#include "test/support/expect_error.hpp"

namespace symm {
namespace {

TEST(EngineChoice, ReadsOneNameOrOneForEachDevice) {
  const auto wish = [](const char* text) {
    const EngineWish read = parse_engine_wish(text, "option");
    return read.cpu + " " + read.cuda + (read.by_device ? " by device" : "");
  };
  EXPECT_EQ(wish("auto"), "auto auto");
  EXPECT_EQ(wish("none"), "none none");
  EXPECT_EQ(wish("my-engine_2"), "my-engine_2 my-engine_2");
  EXPECT_EQ(wish("cpu:gloo,cuda:nccl"), "gloo nccl by device");
  EXPECT_EQ(wish("cuda:gloo"), "auto gloo by device");
  EXPECT_EQ(wish("cpu:other"), "other auto by device");
}

TEST(EngineChoice, RefusesOtherTexts) {
  for (const char* text : {"", "NCCL", "symm", "a b", "cpu:", "gpu:nccl", "cpu:gloo,cpu:gloo",
                           "cpu:gloo,,cuda:nccl", "cuda:none", "cuda:symm", "cpu:gloo cuda:nccl"}) {
    EXPECT_THROW(parse_engine_wish(text, "option"), Error) << text;
  }
}

GpuFacts rank_on(const char* host, int rank, const char* uuid, const char* problem = "") {
  return {host, text_of("rank ", rank), uuid, problem};
}

TEST(EngineChoice, TakesNcclWhereHostsShareNoGpu) {
  const std::vector<GpuFacts> apart{rank_on("a", 0, "1"), rank_on("b", 1, "2")};
  const GpuEngine engine = choose_gpu_engine("auto", "gloo", apart);
  EXPECT_EQ(engine.name, "nccl");
  EXPECT_FALSE(engine.staged);
  EXPECT_TRUE(engine.flat);
}

TEST(EngineChoice, HasNoGroupOfAllWhereRanksOfAHostShareAGpu) {
  const std::vector<GpuFacts> crowded{rank_on("a", 0, "1"), rank_on("a", 1, "1"),
                                      rank_on("b", 2, "2"), rank_on("b", 3, "2")};
  const GpuEngine engine = choose_gpu_engine("nccl", "gloo", crowded);
  EXPECT_FALSE(engine.staged);
  EXPECT_FALSE(engine.flat);
}

TEST(EngineChoice, StagesWhereHostsShareAGpuAndSaysWhy) {
  const std::vector<GpuFacts> shared{rank_on("a", 0, "1"), rank_on("b", 1, "1")};
  const GpuEngine engine = choose_gpu_engine("auto", "gloo", shared);
  EXPECT_EQ(engine.name, "gloo");
  EXPECT_TRUE(engine.staged);
  EXPECT_NE(engine.why.find("rank 0 on host a and rank 1 on host b are on one GPU"),
            std::string::npos)
      << engine.why;
  test::expect_error(test::error_of([&] { choose_gpu_engine("nccl", "gloo", shared); }),
                     ErrorCode::kUnsupported, {"rank 1 on host b", "one GPU", "inter_host"});
  // Another engine may take two ranks of one GPU.
  EXPECT_EQ(choose_gpu_engine("other", "gloo", shared).name, "other");
}

TEST(EngineChoice, StagesWhereARankHasNoNccl) {
  const std::vector<GpuFacts> without{rank_on("a", 0, "1"), rank_on("b", 1, "2", "no nccl")};
  EXPECT_EQ(choose_gpu_engine("auto", "gloo", without).why,
            "rank 1 on host b cannot use nccl: no nccl");
  EXPECT_THROW(choose_gpu_engine("nccl", "gloo", without), Error);
}

TEST(EngineChoice, StagesByTheEngineOfTheCpu) {
  const GpuEngine engine = choose_gpu_engine("gloo", "gloo", {rank_on("a", 0, "1")});
  EXPECT_TRUE(engine.staged);
  EXPECT_EQ(engine.why, "");
}

}  // namespace
}  // namespace symm
