// GPUs without a GPU: memory of the host, and kernels that note what they were asked to do and, but
// in groups of one, move no data. Each rank that is a thread uses the fake GPU of its own number.
//
// A test decides what a kernel does: end at once, or stay under way until the test (or nobody) ends
// it, so that failures can be shown at any moment of a call.
#pragma once

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/core/error.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "test/support/fake_multicast.hpp"

namespace symm::test {

// Memory that a launch was given with a multicast address.
struct FakeMulticastMemory {
  std::byte* multicast = nullptr;
  std::vector<std::byte*> ranks{};
  BufferLocation location = 0;

  bool operator==(const FakeMulticastMemory&) const = default;
};

// What one launch was given.
struct FakeLaunch {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Plan plan{};
  BufferLocation location = 0;
  bool copies = false;
  bool collective = true;
  std::vector<std::byte*> peer_outputs{};
  std::vector<TransferOp> ops{};
  std::vector<Part> sent{};  // input_parts
  std::vector<Part> taken{};
  std::chrono::nanoseconds timeout{0};
  SymmetricRange symmetric_output{};  // of LaunchOptions
  bool multimem = false;
  RowNorm norm{};
  FakeMulticastMemory input{};
  FakeMulticastMemory output{};
};

class FakeKernels final : public GroupKernels {
 public:
  FakeKernels(const GroupKernelsConfig& config, const std::atomic<bool>& queue,
              const std::atomic<bool>& hold, std::atomic<bool>& refuse)
      : config_(config), queue_(queue), hold_(hold), refuse_(refuse) {}

  void set_peer(int rank, std::byte* segment, WireKind messages) override {
    peers_[rank] = segment;
    message_wires_[rank] = messages;
  }
  void set_wire(WireKind wire) override { wire_ = wire; }
  void set_ranks_of_gpu(int ranks) override { ranks_of_gpu_ = ranks; }
  void set_segment(int number, std::span<std::byte* const> bases) override {
    segments_[number].assign(bases.begin(), bases.end());
  }
  void launch(const CollectiveArgs& args, const Plan& plan, const LaunchOptions& options) override {
    if (config_.world_size == 1) carry_out_alone(args);
    begin({.kind = args.kind,
           .plan = plan,
           .sent = {args.input_parts.begin(), args.input_parts.end()},
           .taken = {args.output_parts.begin(), args.output_parts.end()},
           .timeout = options.timeout,
           .symmetric_output = options.output,
           .norm = args.norm});
  }
  void transfer(std::span<const TransferOp> ops, const LaunchOptions& options) override {
    if (config_.world_size == 1 && ops.size() == 2 && ops[0].bytes > 0) {
      std::memmove(ops[1].data, ops[0].data, ops[0].bytes);
    }
    FakeLaunch launch{.collective = false};
    launch.ops.assign(ops.begin(), ops.end());
    launch.timeout = options.timeout;
    launch.symmetric_output = options.output;
    begin(std::move(launch));
  }
  void launch_copies(const CollectiveArgs& args, BufferLocation location,
                     std::span<std::byte* const> peer_outputs,
                     const LaunchOptions& options) override {
    FakeLaunch launch{.kind = args.kind, .location = location, .copies = true};
    launch.peer_outputs.assign(peer_outputs.begin(), peer_outputs.end());
    launch.timeout = options.timeout;
    begin(std::move(launch));
  }

  void norm_rows(const CollectiveArgs& args, StreamHandle) override {
    launches_.back().norm = args.norm;
  }

  void fold(const FoldCall& call, StreamHandle) override {
    const ReduceKernels& kernels = reduce_kernels(call.dtype, call.op, selected_isa());
    kernels.reduce(call.result, call.sources.data(), static_cast<int>(call.sources.size()), nullptr,
                   call.divisor, call.count);
  }
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void launch_multimem(const CollectiveArgs& args, const Plan& plan, const MultimemMemory& memory,
                       const LaunchOptions& options) override {
    const auto kept = [](const MulticastMemory& given) {
      return FakeMulticastMemory{
          given.multicast, {given.ranks.begin(), given.ranks.end()}, given.location};
    };
    begin({.kind = args.kind,
           .plan = plan,
           .timeout = options.timeout,
           .multimem = true,
           .input = kept(memory.input),
           .output = kept(memory.output)});
  }

  const std::vector<FakeLaunch>& launches() const { return launches_; }
  void forget_launches() { launches_.clear(); }
  std::byte* peer(int rank) const { return peers_.contains(rank) ? peers_.at(rank) : nullptr; }
  const std::map<int, std::vector<std::byte*>>& segments() const { return segments_; }
  const GroupKernelsConfig& config() const { return config_; }
  WireKind wire() const { return wire_; }
  WireKind wire_of_messages(int peer) const { return message_wires_.at(peer); }
  int ranks_of_gpu() const { return ranks_of_gpu_; }
  DevicePage& page() const { return *config_.page; }
  bool told_to_leave() const { return load_acquire(&page().abort) == 1; }

  // A kernel gives up, as a GPU would say it.
  void give_up(DeviceFault fault, int peer, std::uint64_t sequence, std::uint64_t theirs = 0,
               std::uint64_t mine = 0, bool transfer = false) {
    DevicePage::Report& report = page().report;
    report.peer = peer;
    report.sequence = sequence;
    report.transfer = transfer ? 1 : 0;
    report.theirs = theirs;
    report.mine = mine;
    store_release(&report.fault, static_cast<std::uint32_t>(fault));
  }

 private:
  // A group of one has all that its collectives need.
  static void carry_out_alone(const CollectiveArgs& args) {
    const void* const from = args.input_parts.empty() ? args.input : args.input_parts[0].data;
    void* const to = args.output_parts.empty() ? args.output : args.output_parts[0].data;
    const std::size_t count =
        args.kind == CollectiveKind::kAllToAll ? args.input_parts[0].count : args.count;
    const std::size_t bytes = count * dtype_bytes(args.dtype);
    if (from != nullptr && to != nullptr && bytes > 0) std::memmove(to, from, bytes);
  }

  void begin(FakeLaunch launch) {
    if (refuse_) throw Error(ErrorCode::kSystem, "the launch was refused");
    const bool ends = !hold_;
    if (queue_) {
      // Its stream has not come to it.
    } else if (launch.collective) {
      store_release(&page().entered, page().entered + 1);
      if (ends) store_release(&page().completed, page().entered);
    } else {
      for (const TransferOp& op : launch.ops) {
        if (op.peer != config_.rank) count_message(op, ends);
      }
    }
    launches_.push_back(std::move(launch));
  }
  void count_message(const TransferOp& op, bool ends) {
    const auto peer = static_cast<std::size_t>(op.peer);
    const auto channel = static_cast<std::size_t>(tag_channel_of(op.tag));
    std::uint64_t& entered = page().messages_entered[peer][channel][op.is_send ? 0 : 1];
    store_release(&entered, entered + 1);
    if (ends) store_release(&page().messages_completed[peer][channel][op.is_send ? 0 : 1], entered);
  }

  GroupKernelsConfig config_;
  const std::atomic<bool>& queue_;
  const std::atomic<bool>& hold_;
  std::atomic<bool>& refuse_;
  WireKind wire_ = WireKind::kLL;
  std::map<int, WireKind> message_wires_;
  int ranks_of_gpu_ = 0;  // until it is told
  std::map<int, std::byte*> peers_;
  std::map<int, std::vector<std::byte*>> segments_;
  std::vector<FakeLaunch> launches_;
};

// Signals that end at once, until a test has one give up.
class FakeSignals final : public SignalKernels {
 public:
  FakeSignals(const SignalKernelsConfig& config, std::atomic<bool>& device_in_error)
      : config_(config), device_in_error_(device_in_error) {}

  void barrier(const SignalPads&, const SignalOptions&) override { check(); }
  void put_signal(const SignalPads&, int, const SignalOptions&) override { check(); }
  void wait_signal(const SignalPads&, int, const SignalOptions&) override { check(); }
  void exchange_rows(const SignalPads&, const RowExchange&, const SignalOptions&) override {
    check();
  }
  void sum_matrices(Dtype, const MatrixPart&, std::span<std::byte* const>, std::byte*,
                    const SignalOptions&) override {
    check();
  }
  std::size_t scratch_words(std::int32_t) const override { return 0; }
  void abort(const Error& reason) noexcept override { lose(~std::uint64_t{0}, reason); }
  void lose(std::uint64_t ranks, const Error& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    lost_ |= ranks;
    if (!failure_) failure_ = reason;
  }
  void check() const override {
    if (const std::optional<Error> found = failure()) throw *found;
  }

  bool gave_up() const noexcept override { return gave_up_; }

  // A wait for `peer` has passed its time-out.
  void time_out(int peer) {
    const std::lock_guard lock(mutex_);
    gave_up_ = true;
    failure_ = Error(ErrorCode::kTimeout, "waited for ", config_.rank_name(peer));
    if (config_.traps) device_in_error_ = true;
  }

  const SignalKernelsConfig& config() const { return config_; }
  std::optional<Error> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  std::uint64_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  const SignalKernelsConfig config_;
  std::atomic<bool>& device_in_error_;
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
  std::uint64_t lost_ = 0;
  std::atomic<bool> gave_up_{false};
};

class FakeGpu final : public GpuRuntime {
 public:
  explicit FakeGpu(int index) : multicast_(index) {
    identity_.name = "Fake GPU";
    identity_.index = index;
    stand_for(index);
    identity_.multiprocessors = 132;
    identity_.architecture = 90;
  }

  // Is the same GPU as that of another rank.
  void stand_for(int index) { identity_.uuid.fill(static_cast<std::uint8_t>(0xa0 + index)); }
  void have_multiprocessors(int count) { identity_.multiprocessors = count; }

  // A stream that is being captured, and one that is not.
  static StreamHandle captured_stream() { return reinterpret_cast<StreamHandle>(2); }
  static StreamHandle plain_stream() { return reinterpret_cast<StreamHandle>(1); }

  std::atomic<bool> queue_kernels{false};    // kernels do not begin
  std::atomic<bool> hold_kernels{false};     // kernels begin and do not end
  std::atomic<bool> refuse_launches{false};  // launching throws
  std::atomic<bool> refuse_imports{false};   // this GPU reaches no other's memory
  std::atomic<bool> refuse_allocation{false};
  std::atomic<bool> has_descriptors{true};
  std::atomic<bool> has_fabric_handles{false};
  std::atomic<bool> in_error{false};  // so is its context
  std::atomic<int> synchronizations{0};
  std::atomic<unsigned> unlinked{0};          // bit i: this GPU has no NVLink to GPU i
  std::array<std::atomic<int>, 2> exports{};  // by HandleKind
  std::array<std::atomic<int>, 2> imports{};

  // Those of the group that last made some on this GPU, while they live.
  FakeKernels& kernels() const { return *kernels_; }
  FakeSignals& signals() const { return *signals_; }

  FakeMulticast& fake_multicast() { return multicast_; }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  MulticastDevice* multicast() override { return &multicast_; }
  std::size_t granularity() const override { return host_runtime().granularity(); }
  std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) override {
    if (refuse_allocation) throw Error(ErrorCode::kSystem, "out of fake memory");
    return host_runtime().allocate(bytes);
  }
  HandleKinds handle_kinds(const PhysicalMemory&) override {
    return {.descriptor = has_descriptors, .fabric = has_fabric_handles};
  }
  // A fabric handle is the number of a descriptor that stays open.
  MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) override {
    ++exports[static_cast<std::size_t>(kind)];
    MemoryHandle handle = host_runtime().export_memory(memory, HandleKind::kDescriptor);
    if (kind == HandleKind::kDescriptor) return handle;
    FabricHandle fabric;
    const int fd = std::get<FileDescriptor>(handle).get();
    std::memcpy(fabric.bytes.data(), &fd, sizeof(fd));
    fabric_.push_back(std::get<FileDescriptor>(std::move(handle)));
    return fabric;
  }
  std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) override {
    if (refuse_imports) throw Error(ErrorCode::kSystem, "no peer access");
    ++imports[handle.index()];
    if (const auto* const fabric = std::get_if<FabricHandle>(&handle)) {
      int fd = -1;
      std::memcpy(&fd, fabric->bytes.data(), sizeof(fd));
      handle = FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    return host_runtime().import_memory(std::move(handle), bytes);
  }
  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    return host_runtime().reserve(bytes);
  }
  std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) override {
    const std::shared_ptr<AddressRange> range = reserve(memory->bytes());
    return map_at(std::move(memory), range, 0);
  }
  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    return host_runtime().map_at(std::move(memory), std::move(range), offset);
  }
  void clear(std::byte* data, std::size_t bytes) override { host_runtime().clear(data, bytes); }
  const GpuIdentity& identity() const override { return identity_; }
  std::vector<GpuUuid> gpus_with_lines() override {
    std::vector<GpuUuid> gpus;
    for (std::uint8_t i = 0; i < 32; ++i) {
      GpuUuid gpu{};
      gpu.fill(static_cast<std::uint8_t>(0xa0 + i));
      if (gpu == identity_.uuid || (unlinked >> i & 1) == 0) gpus.push_back(gpu);
    }
    return gpus;
  }
  StreamHandle make_stream(bool) override {
    static std::atomic<std::uintptr_t> made{0x1000};
    return reinterpret_cast<StreamHandle>(made += 16);
  }
  std::uint64_t capture_id(StreamHandle stream) override {
    if (in_error) throw Error(ErrorCode::kSystem, "the fake GPU is in error");
    return stream == captured_stream() ? 1 : 0;
  }
  void drop_implied_dependencies(StreamHandle) noexcept override {}
  int relax_capture_mode() noexcept override { return 0; }
  void restore_capture_mode(int) noexcept override {}
  void synchronize() override {
    ++synchronizations;
    if (in_error) throw Error(ErrorCode::kSystem, "the fake GPU is in error");
  }
  bool is_in_error() noexcept override { return in_error; }
  std::unique_ptr<GroupKernels> make_group_kernels(const GroupKernelsConfig& config) override {
    auto kernels =
        std::make_unique<FakeKernels>(config, queue_kernels, hold_kernels, refuse_launches);
    kernels_ = kernels.get();
    return kernels;
  }
  std::unique_ptr<SignalKernels> make_signal_kernels(const SignalKernelsConfig& config) override {
    auto signals = std::make_unique<FakeSignals>(config, in_error);
    signals_ = signals.get();
    return signals;
  }

 private:
  GpuIdentity identity_;
  FakeMulticast multicast_;
  std::vector<FileDescriptor> fabric_;  // that fabric handles name
  FakeKernels* kernels_ = nullptr;
  FakeSignals* signals_ = nullptr;
};

// Takes the place of libsymm_cuda.so while it lives.
class FakeGpus {
 public:
  FakeGpus() {
    const std::lock_guard lock(mutex());
    gpus().clear();
    for (int i = 0; i < 16; ++i) gpus().emplace_back(i);
    static const DeviceLibrary library{kDeviceLibraryVersion, DeviceKind::kCuda, find};
    set_device_library(DeviceKind::kCuda, &library);
  }
  ~FakeGpus() { set_device_library(DeviceKind::kCuda, nullptr); }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  FakeGpu& operator[](int index) const { return gpus().at(static_cast<std::size_t>(index)); }

 private:
  static std::deque<FakeGpu>& gpus() {
    static std::deque<FakeGpu> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  static GpuRuntime& find(int index) {
    const std::lock_guard lock(mutex());
    return gpus().at(static_cast<std::size_t>(index));
  }
};

}  // namespace symm::test
