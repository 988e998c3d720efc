// The flight record as PyTorch's analyser reads it.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend/engine/record/flight_entry.hpp"
#include "backend/engine/record/pickle_writer.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/printable_text.hpp"

namespace symm {

namespace {

// The format that is written, as PyTorch 2.13 numbers it; its analyser reads it from 2.11 on.
constexpr const char* kFormatVersion = "2.10";
// The analyser takes an entry that follows another one for a part of its block where the two have
// one number, whichever kind that is: messages are numbered where no collective is.
constexpr std::uint64_t kFirstMessage = std::uint64_t{1} << 32;

// "nccl:send 0->1": the analyser knows the names of PyTorch's own backends only.
std::string profiling_name(const FlightCall& call, int rank) {
  if (!call.peer) return text_of("nccl:", call.name);
  return call.is_send ? text_of("nccl:", call.name, " ", rank, "->", *call.peer)
                      : text_of("nccl:", call.name, " ", rank, "<-", *call.peer);
}

void write_tensors(PickleWriter& out, const FlightTensors& tensors, bool inputs) {
  const std::string side = inputs ? "input" : "output";
  const std::size_t begin = inputs ? 0 : tensors.inputs();
  const std::size_t end = inputs ? tensors.inputs() : tensors.dtypes().size();
  out.text(side + "_sizes");
  out.list([&] {
    const std::int64_t* next = tensors.numbers().data();
    for (std::size_t tensor = 0; tensor < end; ++tensor) {
      const std::int64_t* const last = next + 1 + *next;
      if (tensor >= begin) {
        out.list([&] { std::for_each(next + 1, last, [&](auto size) { out.integer(size); }); });
      }
      next = last;
    }
  });
  out.text(side + "_dtypes");
  out.list([&] {
    for (std::size_t tensor = begin; tensor < end; ++tensor) out.text(tensors.dtypes()[tensor]);
  });
}

void write_integer(PickleWriter& out, const char* key, std::int64_t value) {
  out.text(key);
  out.integer(value);
}

void write_time(PickleWriter& out, const char* key, std::int64_t time) {
  out.text(key);
  if (time == 0) {
    out.none();
  } else {
    out.integer(time);
  }
}

// Without the braces.
void write_entry(PickleWriter& out, const FlightEntry& entry) {
  const FlightCall& call = entry.call;
  const FlightGroup& group = *entry.group;
  write_integer(out, "record_id", static_cast<std::int64_t>(entry.id));
  write_integer(out, "pg_id", static_cast<std::int64_t>(group.number()));
  out.text("process_group");
  out.pair(group.name(), group.description());
  write_integer(out, "collective_seq_id", static_cast<std::int64_t>(call.collective));
  write_integer(out, "p2p_seq_id", static_cast<std::int64_t>(kFirstMessage + call.message));
  write_integer(out, "op_id", static_cast<std::int64_t>(call.operation));
  out.text("profiling_name");
  out.text(profiling_name(call, group.rank()));
  write_integer(out, "time_created_ns", entry.created);
  write_tensors(out, entry.tensors, true);
  write_tensors(out, entry.tensors, false);
  out.text("state");
  out.text(entry.completed != 0 ? "completed" : entry.started != 0 ? "started" : "scheduled");
  write_time(out, "time_discovered_started_ns", entry.started);
  write_time(out, "time_discovered_completed_ns", entry.completed);
  out.text("retired");
  out.boolean(entry.retired);
  write_integer(out, "timeout_ms", call.timeout.count());
  out.text("is_p2p");
  out.boolean(call.is_message);
  out.text("thread_id");
  out.text(std::to_string(entry.thread));
  out.text("thread_name");
  out.text(printable(entry.thread_name.data()));
}

// The last collectives of a group that were enqueued, started and completed; -1 for none.
struct Status {
  std::int64_t enqueued = -1;
  std::int64_t started = -1;
  std::int64_t completed = -1;

  void count(const FlightEntry& entry) {
    if (entry.call.is_message) return;
    const auto number = static_cast<std::int64_t>(entry.call.collective);
    enqueued = std::max(enqueued, number);
    if (entry.started != 0) started = std::max(started, number);
    if (entry.completed != 0) completed = std::max(completed, number);
  }
};

std::string list_of(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

}  // namespace

std::string FlightRecord::dump() {
  const std::lock_guard lock(mutex_);
  std::map<const FlightGroup*, Status> statuses;
  for (const auto& group : groups_) statuses[group.get()];
  PickleWriter out;
  out.dict([&] {
    out.text("version");
    out.text(kFormatVersion);
    out.text("comm_lib_version");
    out.text("symm");
    out.text("entries");
    out.list([&] {
      visit([&](FlightEntry& entry) {
        entry.look_at_device();
        statuses[entry.group].count(entry);
        out.dict([&] { write_entry(out, entry); });
      });
    });
    out.text("pg_config");
    out.dict([&] {
      for (const auto& group : groups_) {
        out.text(group->name());
        out.dict([&] {
          out.text("name");
          out.text(group->name());
          out.text("desc");
          out.text(group->description());
          out.text("ranks");
          out.text(list_of(group->ranks()));
        });
      }
    });
    out.text("pg_status");
    out.dict([&] {
      for (const auto& group : groups_) {
        const Status& status = statuses[group.get()];
        out.text(std::to_string(group->number()));
        out.dict([&] {
          write_integer(out, "last_enqueued_collective", status.enqueued);
          write_integer(out, "last_started_collective", status.started);
          write_integer(out, "last_completed_collective", status.completed);
        });
      }
    });
  });
  return out.take();
}

std::string FlightRecord::write_file(std::int64_t global_rank) {
  const EnvironmentVariable prefix =
      first_variable({"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"});
  if (prefix.value == nullptr) return "";
  const std::string path = prefix.value + std::to_string(global_rank);
  const std::string bytes = dump();
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  bool well = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file != nullptr) well = std::fclose(file) == 0 && well;
  if (well) return "";
  return text_of("the flight record was not written to ", printable(path), ": ",
                 std::strerror(errno));
}

}  // namespace symm
