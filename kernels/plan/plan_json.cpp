// Tuning tables as JSON.
#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

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

void check_keys(const json& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) throw std::invalid_argument("expected an object, got " + object.dump());
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw std::invalid_argument("unknown key '" + key + "'");
    }
  }
}

PlanRow parse_row(const json& row) {
  check_keys(row, {"collective", "min_world", "max_world", "max_bytes", "algorithm", "chunk_bytes",
                   "channels"});
  const json& max_bytes = row.at("max_bytes");
  return PlanRow{
      .kind = parse_kind(row.at("collective").get<std::string>()),
      .min_world = row.at("min_world").get<int>(),
      .max_world = row.at("max_world").get<int>(),
      .max_bytes = max_bytes.is_null() ? PlanRow::kNoLimit : max_bytes.get<std::uint64_t>(),
      .algorithm = parse_algorithm(row.at("algorithm").get<std::string>(), "algorithm"),
      .chunk_bytes = row.value("chunk_bytes", std::size_t{0}),
      .channels = row.value("channels", 0)};
}

// The document's rows under `key`, and those of `others` of the collectives that they do not name.
std::vector<PlanRow> merged_rows(const json& document, const char* key,
                                 const std::vector<PlanRow>& others) {
  std::vector<PlanRow> own;
  if (document.contains(key)) {
    for (const json& row : document.at(key)) own.push_back(parse_row(row));
  }
  std::vector<PlanRow> all = own;
  for (const PlanRow& row : others) {
    const bool replaced = std::any_of(own.begin(), own.end(),
                                      [&](const PlanRow& other) { return other.kind == row.kind; });
    if (!replaced) all.push_back(row);
  }
  return all;
}

json rows_to_json(const PlanTable& table) {
  json rows = json::array();
  for (const PlanRow& row : table.rows()) {
    json max_bytes = nullptr;
    if (row.max_bytes != PlanRow::kNoLimit) max_bytes = row.max_bytes;
    json fields = {{"collective", collective_name(row.kind)},
                   {"min_world", row.min_world},
                   {"max_world", row.max_world},
                   {"max_bytes", max_bytes},
                   {"algorithm", algorithm_name(row.algorithm)}};
    if (table.target() == PlanTarget::kGpu) {
      fields["channels"] = row.channels;
    } else {
      fields["chunk_bytes"] = row.chunk_bytes;
    }
    rows.push_back(std::move(fields));
  }
  return rows;
}

}  // namespace

PlanTables PlanTables::from_json(std::string_view text, std::string_view source) {
  try {
    const json document = json::parse(text);
    check_keys(document, {"rows", "gpu_rows", "gpu_line_rows", "copy_engine_bytes"});
    if (document.empty()) throw std::invalid_argument("expected rows, gpu_rows or both");
    const PlanTables built_in;
    const std::uint64_t copy_engine_bytes =
        document.value("copy_engine_bytes", built_in.gpu.copy_engine_bytes());
    const auto on_gpus = [&](std::vector<PlanRow> rows) {
      return PlanTable(PlanTarget::kGpu, std::move(rows), copy_engine_bytes);
    };
    const std::vector<PlanRow> line = merged_rows(document, "gpu_rows", built_in.gpu_line.rows());
    return {
        .host = PlanTable(PlanTarget::kHost, merged_rows(document, "rows", built_in.host.rows())),
        .gpu = on_gpus(merged_rows(document, "gpu_rows", built_in.gpu.rows())),
        .gpu_line = on_gpus(merged_rows(document, "gpu_line_rows", line))};
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string(source) + ": " + error.what());
  }
}

std::string PlanTables::to_json() const {
  return json{{"rows", rows_to_json(host)},
              {"gpu_rows", rows_to_json(gpu)},
              {"gpu_line_rows", rows_to_json(gpu_line)},
              {"copy_engine_bytes", gpu.copy_engine_bytes()}}
      .dump();
}

}  // namespace symm
