#include "kernels/plan/multimem.hpp"

#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

constexpr std::uint64_t kUnit = 16;  // bytes of one access

// The pairs of multimem.ld_reduce that are compiled.
bool has_reduction(Dtype dtype, ReduceOp op) {
  if (dtype == Dtype::kFloat32) return op == ReduceOp::kSum;
  return (dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16) &&
         (op == ReduceOp::kSum || op == ReduceOp::kMin || op == ReduceOp::kMax);
}

// Rank r's share begins r * bytes after the first.
bool has_shares(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

std::string misplaced(const char* what, std::uint64_t value) {
  return std::string("the ") + what + " must be a multiple of " + std::to_string(kUnit) +
         " bytes, got " + std::to_string(value);
}

std::string reduction_problem(const MultimemFacts& facts) {
  if (!has_reduction(facts.dtype, facts.op)) {
    return "it has SUM of float32, and SUM, MIN and MAX of float16 and bfloat16, got " +
           std::string(reduce_op_name(facts.op)) + " of " + std::string(dtype_name(facts.dtype));
  }
  if (facts.same_bits) {
    return "the switch adds in an order of its own, so the same bits by every algorithm must be "
           "waived, by the option deterministic=False or SYMM_DETERMINISTIC=0 on every rank";
  }
  return {};
}

std::string problem(const MultimemFacts& facts) {
  if (!has_algorithm(facts.kind, Algorithm::kMultimem, PlanTarget::kGpu)) {
    return "it has all_reduce, reduce_scatter, all_gather and broadcast";
  }
  if (facts.architecture < kMultimemArchitecture) {
    return "every GPU must have compute capability 9.0 or more, one has " +
           std::to_string(facts.architecture / 10) + "." + std::to_string(facts.architecture % 10);
  }
  if (!facts.has_multicast) {
    return "not every rank has a multicast address of the symmetric memory";
  }
  if (reduces(facts.kind)) {
    if (std::string text = reduction_problem(facts); !text.empty()) return text;
  }
  if (facts.input_offset % kUnit != 0) return misplaced("input's offset", facts.input_offset);
  if (facts.output_offset % kUnit != 0) return misplaced("output's offset", facts.output_offset);
  if (has_shares(facts.kind) && facts.bytes % kUnit != 0) {
    return misplaced("size of a share", facts.bytes);
  }
  return {};
}

}  // namespace

std::string multimem_refusal(const MultimemFacts& facts) {
  const std::string text = problem(facts);
  if (text.empty()) return {};
  return "multimem cannot carry out this " + std::string(collective_name(facts.kind)) + ": " + text;
}

}  // namespace symm
