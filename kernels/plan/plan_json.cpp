// Tuning tables as JSON.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

namespace {

using nlohmann::json;

CollectiveKind parse_kind(const std::string& text) {
  const auto found = std::find(kCollectiveKindNames.begin(), kCollectiveKindNames.end(), text);
  if (found == kCollectiveKindNames.end()) {
    throw std::invalid_argument("unknown collective '" + text + "'");
  }
  return static_cast<CollectiveKind>(found - kCollectiveKindNames.begin());
}

PlanRow parse_row(const json& row) {
  static const std::vector<std::string> kKeys = {"collective", "min_world", "max_world",
                                                 "max_bytes",  "algorithm", "chunk_bytes"};
  for (const auto& [key, value] : row.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      throw std::invalid_argument("unknown key '" + key + "'");
    }
  }
  const json& max_bytes = row.at("max_bytes");
  return PlanRow{
      .kind = parse_kind(row.at("collective").get<std::string>()),
      .min_world = row.at("min_world").get<int>(),
      .max_world = row.at("max_world").get<int>(),
      .max_bytes = max_bytes.is_null() ? PlanRow::kNoLimit : max_bytes.get<std::uint64_t>(),
      .algorithm = parse_algorithm(row.at("algorithm").get<std::string>(), "algorithm"),
      .chunk_bytes = row.at("chunk_bytes").get<std::size_t>()};
}

}  // namespace

PlanTable PlanTable::from_json(std::string_view text, std::string_view source) {
  std::vector<PlanRow> rows;
  try {
    const json document = json::parse(text);
    for (const json& row : document.at("rows")) rows.push_back(parse_row(row));
    std::vector<PlanRow> all = rows;
    for (const PlanRow& row : built_in().rows()) {
      const bool replaced = std::any_of(rows.begin(), rows.end(),
                                        [&](const PlanRow& own) { return own.kind == row.kind; });
      if (!replaced) all.push_back(row);
    }
    return PlanTable(std::move(all));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string(source) + ": " + error.what());
  }
}

PlanTable PlanTable::from_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    throw Error(ErrorCode::kInvalidArgument,
                "SYMM_TUNING_FILE: expected a readable JSON file, got '" + path + "'");
  }
  return from_json(text.str(), "SYMM_TUNING_FILE " + path);
}

std::string PlanTable::to_json() const {
  json rows = json::array();
  for (const PlanRow& row : rows_) {
    json max_bytes = nullptr;
    if (row.max_bytes != PlanRow::kNoLimit) max_bytes = row.max_bytes;
    rows.push_back({{"collective", collective_name(row.kind)},
                    {"min_world", row.min_world},
                    {"max_world", row.max_world},
                    {"max_bytes", max_bytes},
                    {"algorithm", algorithm_name(row.algorithm)},
                    {"chunk_bytes", row.chunk_bytes}});
  }
  return json{{"rows", rows}}.dump();
}

}  // namespace symm
