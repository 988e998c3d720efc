// The last collectives and messages of this process, in the form that PyTorch's torchfrtrace reads.
//
// NOTE [A record of our own]
// PyTorch's FlightRecorder is a template whose members the wheel neither exports nor lets be
// compiled (their header needs one that is not shipped), and that takes the interpreter's lock and
// one mutex for each call. So the ring is ours, and the file has PyTorch's format: torch_symm needs
// no version of torch for it. Python's frames, which cost that lock, are not in it.
//
// NOTE [States of a call]
// A call is scheduled when it is recorded. On the host it tells when it starts and completes. On a
// device nobody tells: whoever reads the record compares the call's number with the counters that
// the device writes (DevicePage), so those times are when somebody looked. Calls in a graph capture
// are not recorded, and from a group's first capture on its device's counters name no call.
//
// A record is one to a process and never freed, as its groups: a record names groups that have
// ended. A forked child starts with an empty one. Thread safe: each entry has a lock of its own,
// which its one writer holds for some tens of nanoseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace symm {

// Where the device counts the calls of one order, and the number of one of them there.
struct DeviceProgress {
  const std::uint64_t* begun = nullptr;  // null: nobody counts
  const std::uint64_t* ended = nullptr;
  std::uint64_t number = 0;
};

// A group in the record.
class FlightGroup {
 public:
  // `number` is the group's in this process; ranks are global ones.
  FlightGroup(std::size_t number, std::string name, int rank, std::vector<std::int64_t> ranks)
      : number_(number), name_(std::move(name)), rank_(rank), ranks_(std::move(ranks)) {}

  // PyTorch's description of the group, which it gets after it was made.
  void describe(const std::string& description);

  std::size_t number() const { return number_; }
  const std::string& name() const { return name_; }
  std::string description() const;
  int rank() const { return rank_; }  // group rank
  std::int64_t global_rank() const { return ranks_[static_cast<std::size_t>(rank_)]; }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }

 private:
  friend class FlightRecord;

  std::optional<std::uint64_t> ended_at_;  // the first call of the record that is not the group's
  const std::size_t number_;
  const std::string name_;
  const int rank_;
  const std::vector<std::int64_t> ranks_;
  mutable std::mutex mutex_;  // guards what follows
  std::string description_ = "undefined";
};

// Sizes and dtypes of a call's tensors; keeps its memory.
class FlightTensors {
 public:
  void clear();
  // Inputs first. `leading`, where positive, is one more dimension in front. `dtype` is static.
  void add(std::span<const std::int64_t> sizes, const char* dtype, std::int64_t leading = 0);
  void outputs_follow() { inputs_ = tensors_; }

  std::size_t inputs() const { return inputs_; }
  std::span<const char* const> dtypes() const { return {dtypes_.data(), tensors_}; }
  // For each tensor the number of its dimensions, then those.
  std::span<const std::int64_t> numbers() const { return {numbers_.data(), used_}; }

 private:
  // They only grow, as an entry of the ring is used again and again.
  std::vector<std::int64_t> numbers_;
  std::vector<const char*> dtypes_;
  std::size_t used_ = 0;
  std::size_t tensors_ = 0;
  std::size_t inputs_ = 0;
};

struct FlightCall {
  const char* name = "";         // static; as torchfrtrace knows it
  std::uint64_t collective = 0;  // number of the group's last collective, this one included
  std::uint64_t message = 0;     // of its last message
  std::uint64_t operation = 0;   // of its last operation
  std::optional<int> peer = {};  // group rank of a message's other end; -1 where that is any
  bool is_send = false;
  bool is_message = false;  // also the end of a block of messages
  bool starts = false;      // as soon as it is recorded
  std::chrono::milliseconds timeout{0};
};

class FlightEntry;

// One call in the record. Cheap to copy; empty where nothing is recorded. A call that has left the
// ring is left alone.
class FlightTicket {
 public:
  FlightTicket() = default;
  FlightTicket(FlightEntry* entry, std::uint64_t use) : entry_(entry), use_(use) {}
  explicit operator bool() const { return entry_ != nullptr; }

  void started() const;
  // Ended, well or not. Idempotent: the first call counts.
  void ended(bool well) const;
  void on_device(const DeviceProgress& progress) const;
  // The call was refused, or is part of a capture: it never was.
  void discard() const;

 private:
  FlightEntry* entry_ = nullptr;
  std::uint64_t use_ = 0;  // of the entry's place in the ring
};

class FlightRecord {
 public:
  // This process's, made by the first call; null where TORCH_FR_BUFFER_SIZE (or
  // TORCH_NCCL_TRACE_BUFFER_SIZE) is 0. Throws Error(kInvalidArgument) for a wrong value.
  static FlightRecord* of_process();

  explicit FlightRecord(std::size_t size);
  ~FlightRecord();

  FlightGroup& add_group(const std::string& name, int rank, std::vector<std::int64_t> ranks);
  // `group` gets no more calls. It is there until the ring has none of its calls any more.
  void end_group(FlightGroup& group);
  // The memory of `group`'s device counters goes away; what they say is noted before.
  void forget_counters(FlightGroup& group);

  // `fill(FlightTensors&)` adds the call's tensors.
  template <typename Fill>
  FlightTicket add(FlightGroup& group, const FlightCall& call, Fill&& fill);

  // The record as a pickle.
  std::string dump();
  // Writes it to the file that TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE) and
  // `global_rank` name together; nothing where neither is set. "" or what went wrong.
  std::string write_file(std::int64_t global_rank);

 private:
  FlightEntry& place(std::uint64_t id);
  // Locked, until close(); null where it came too late.
  FlightEntry* open(FlightGroup& group, const FlightCall& call);
  static FlightTensors& tensors_of(FlightEntry& entry);
  static FlightTicket close(FlightEntry& entry);
  // Every entry that is there, oldest first, while it cannot change.
  template <typename Visit>
  void visit(Visit&& visit);

  friend class FlightTicket;
  struct Chunk;

  const std::size_t size_;
  const std::uint32_t generation_;
  std::vector<std::atomic<Chunk*>> chunks_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;  // guards what follows, and that counters stay
  std::vector<std::unique_ptr<FlightGroup>> groups_;
  std::size_t groups_made_ = 0;
};

template <typename Fill>
FlightTicket FlightRecord::add(FlightGroup& group, const FlightCall& call, Fill&& fill) {
  FlightEntry* const entry = open(group, call);
  if (entry == nullptr) return {};
  fill(tensors_of(*entry));
  return close(*entry);
}

}  // namespace symm
