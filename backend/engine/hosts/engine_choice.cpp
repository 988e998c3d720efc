#include "backend/engine/hosts/engine_choice.hpp"

#include <algorithm>

namespace symm {
namespace {

// A name that torch.distributed could know a backend by.
bool is_engine_name(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  const bool plain = std::ranges::all_of(name, [](char c) {
    return c == '-' || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
  });
  return !name.empty() && name.size() <= kLongest && plain && name != "symm";
}

// What keeps two ranks of different hosts from being in one group of the engine; "" for nothing.
std::string conflict_of(const std::string& engine, const std::vector<GpuFacts>& ranks) {
  if (engine != kGpuEngine) return "";
  for (std::size_t one = 0; one < ranks.size(); ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      if (ranks[one].uuid != ranks[other].uuid || ranks[one].host == ranks[other].host) continue;
      return text_of(ranks[other].rank_name, " on host ", ranks[other].host, " and ",
                     ranks[one].rank_name, " on host ", ranks[one].host, " are on one GPU, ",
                     ranks[one].uuid, ", which ", engine, " refuses");
    }
  }
  return "";
}

bool all_apart(const std::vector<GpuFacts>& ranks) {
  std::vector<std::string> uuids;
  uuids.reserve(ranks.size());
  for (const GpuFacts& rank : ranks) uuids.push_back(rank.uuid);
  std::ranges::sort(uuids);
  return std::ranges::adjacent_find(uuids) == uuids.end();
}

}  // namespace

EngineWish parse_engine_wish(std::string_view text, const std::string& what) {
  const auto refuse = [&] {
    throw Error(ErrorCode::kInvalidArgument, what,
                ": expected auto, none, the name of a backend other than symm, or one for each "
                "device (cpu:gloo,cuda:nccl), got '",
                text, "'");
  };
  EngineWish wish;
  if (text.find(':') == std::string_view::npos) {
    if (!is_engine_name(text)) refuse();
    wish.cpu = wish.cuda = text;
    return wish;
  }
  wish.by_device = true;
  bool said_cpu = false;
  bool said_cuda = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.size(), rest.find(','));
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    const std::size_t colon = std::min(entry.size(), entry.find(':'));
    const std::string_view device = entry.substr(0, colon);
    const std::string_view name = entry.substr(std::min(entry.size(), colon + 1));
    bool& said = device == "cpu" ? said_cpu : said_cuda;
    const bool known = device == "cpu" || device == "cuda";
    if (!known || said || !is_engine_name(name) || name == "none") refuse();
    said = true;
    (device == "cpu" ? wish.cpu : wish.cuda) = name;
  }
  return wish;
}

GpuEngine choose_gpu_engine(const std::string& wish, const std::string& cpu_engine,
                            const std::vector<GpuFacts>& ranks) {
  if (wish == cpu_engine) return {.name = cpu_engine, .staged = true};
  const std::string name = wish == "auto" ? std::string(kGpuEngine) : wish;
  std::string problem = conflict_of(name, ranks);
  for (const GpuFacts& rank : ranks) {
    if (problem.empty() && !rank.problem.empty()) {
      problem =
          text_of(rank.rank_name, " on host ", rank.host, " cannot use ", name, ": ", rank.problem);
    }
  }
  if (problem.empty()) return {.name = name, .flat = all_apart(ranks)};
  if (wish == "auto") return {.name = cpu_engine, .staged = true, .why = problem};
  throw Error(ErrorCode::kUnsupported, "CUDA tensors between hosts: ", problem,
              "; choose another engine with inter_host or SYMM_INTER_HOST");
}

}  // namespace symm
