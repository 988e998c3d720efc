// The c10d backend "symm": every collective of a torch.distributed process group, carried out by
// this library's own kernels.
//
// A c10d member function here does three things: it checks the tensors and turns them into
// CollectiveArgs (collective_call.hpp), it runs them or queues them (issue), and it turns
// symm::Error into PyTorch's exception (errors.hpp). Everything else is below the torch seam.
//
// NOTE [Where an operation runs]
// asyncOp == false: on the caller's thread, when nothing of this group is queued; the returned Work
// is finished and errors are thrown by the call itself. Else, and between startCoalescing and
// endCoalescing: on the group's queue, in the order of the calls. A synchronous call that finds the
// queue busy is queued and waited for. send and recv start at once, those between startCoalescing
// and endCoalescing all together at the end, and progress by themselves.
//
// Operations on a GPU are put on a stream by the call (device_launcher.hpp), which returns before
// they have run; they and those on the host are two orders that do not wait for each other.
// barrier() stands in both: the host first waits until the device has done what was put on it
// before, then meets the other ranks. Where the current stream is captured, it is an operation on
// the device.
//
// All collectives are collective over the group and must be called in the same order on every rank.
// Thread safety: as c10d's: calls from several threads are safe, their order is the caller's care.
// They block; call them without Python's interpreter lock.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/ProcessGroupSymmOptions.hpp"
#include "backend/WorkSymm.hpp"
#include "backend/collective_call.hpp"
#include "backend/configured_call.hpp"
#include "backend/device_launcher.hpp"
#include "backend/engine/group_engine.hpp"
#include "backend/engine/host/point_to_point.hpp"
#include "symm_mem/c10d/group_links.hpp"

namespace symm {

class ProcessGroupSymm final : public c10d::Backend, public SegmentUser {
 public:
  using Options = ProcessGroupSymmOptions;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // Collective over the group: connects the ranks through `store`, which must be the group's own
  // (c10d hands out one with a prefix). Throws DistBackendError naming the ranks that did not come
  // within the time-out, ValueError for a wrong option. options == nullptr gives the defaults.
  ProcessGroupSymm(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   const c10::intrusive_ptr<Options>& options = nullptr);
  // Interrupts what is in flight, as the end of the process does. Local. Memory that a GPU may
  // still touch is given back after it has stopped.
  ~ProcessGroupSymm() override;

  const std::string getBackendName() const override { return "symm"; }
  // A copy: splitGroup writes to what it gets.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;

  // Reductions.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // c10d sends sparse tensors on a GPU here; they are refused as on the CPU.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return allreduce(tensors, opts);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  // Data movement.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // The error names the ranks that did not come; all of them, whatever `wait_all_ranks` says.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Point-to-point; ranks are group ranks. A message of a rank to itself needs a coalescing block
  // that holds both its send and its recv, which match by tag in the order of the calls, and is
  // copied by the end of the block; else it is a ValueError before anything of the block is sent.
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Coalescing covers the calls of one thread, on one device. Messages start at the end of the
  // block, all together or, where one of them is refused, none. On a GPU every call of the block
  // returns the Work that the block ends with.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // `ranks` are group ranks of this group. nullptr where this rank is not among them; the same
  // backend again where the call repeats the last one with the same store (c10d splits once per
  // device type). Collective over `ranks`.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  // Ranks count their operations alike from the start, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  void enableCollectivesTiming() override {}
  // Makes and connects the group's half on a GPU, which else the first operation there does.
  // Collective for a GPU; nothing is to be done for the host.
  void eagerConnectSingleDevice(at::Device device) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // A collective with a plan and stages of its own (torch_symm.ccl). Collective; every rank must
  // give the same request and op, and stages or none. ValueError for what check_request() refuses.
  WorkPtr run_configured(const ConfiguredCall& given, bool async_op);

  // Whether collectives would find `tensor`, on a GPU, in memory that has joined this group. Local.
  bool device_knows(const at::Tensor& tensor) const;

  // A barrier as an operation of the current stream where `device` is a GPU (capturable), as
  // barrier() on the host. nullopt: the GPU that the group uses or is bound to on this rank, the
  // host where there is none.
  WorkPtr device_barrier(std::optional<at::Device> device);

  // Memory of PyTorch's symmetric-memory API that has joined this group is read in place as well.
  std::shared_ptr<LocalGroup> local_group() override;
  void prepare_segment(const LocalSegment& local) override;
  void add_segment(std::shared_ptr<Segment> segment, bool symmetric) override;
  void set_symmetric(const std::shared_ptr<Segment>& segment) override;
  void remove_segment(const std::shared_ptr<Segment>& segment) override;

 private:
  using Milliseconds = std::chrono::milliseconds;

  CallBuilder builder(CollectiveKind kind) const { return {kind, rank_, size_, gpu()}; }
  CallBatch one(CollectiveCall call) const;

  // Runs or queues `calls`; see NOTE [Where an operation runs]. `title` names the operation in
  // profiles.
  WorkPtr issue(c10d::OpType type, const char* title, CallBatch calls, Milliseconds timeout,
                bool async_op);
  WorkPtr run_inline(c10d::OpType type, const char* title, const CallBatch& calls,
                     Milliseconds timeout);
  WorkPtr enqueue(c10d::OpType type, const char* title, CallBatch calls, Milliseconds timeout);

  // The GPU of this group on this rank: the one in use, else the one it is bound to, else -1.
  int gpu() const {
    if (const DeviceLauncher* device = device_.load(std::memory_order_acquire)) {
      return device->device().index();
    }
    return bound_device_id_ && bound_device_id_->is_cuda() ? bound_device_id_->index() : -1;
  }
  // The half on `device`, made on first use. Throws as DeviceLauncher::DeviceLauncher.
  DeviceLauncher& device_launcher(at::Device device);
  WorkPtr issue_on_device(c10d::OpType type, const char* title, CallBatch calls,
                          Milliseconds timeout, bool async_op);
  // The barrier's call: on the device inside a capture, else on the host behind the device's work.
  // Collective where `opts` names the GPU of a group that has not used one.
  CollectiveCall barrier_call(const c10d::BarrierOptions& opts);

  CollectiveCall gather_into(at::Tensor& output, at::Tensor& input, int index) const;
  CollectiveCall scatter_from(at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& op,
                              int index) const;
  enum class Direction { kSend, kRecv };
  WorkPtr transfer(Direction direction, c10d::OpType type, Tensors& tensors, int peer, int tag);
  // `op` moves `tensor`.
  WorkPtr transfer_on_device(c10d::OpType type, const at::Tensor& tensor, const TransferOp& op);
  WorkPtr transfer_on_host(c10d::OpType type, const at::Tensor& tensor, const TransferOp& op);

  bool coalescing() const {
    return coalescing_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // A coalescing block is on one device. Throws kUnsupported.
  void check_block(at::Device device);
  void add_coalesced(const WorkPtr& work);
  // A message on the host that waits for the end of its block.
  struct HostMessage {
    Message message;
    c10::intrusive_ptr<TransferWork> work;
  };
  void start_messages(std::vector<HostMessage> block);
  DeviceLauncher::Block& device_block(DeviceLauncher& device, std::uint64_t sequence);

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<GroupEngine> engine_;
  std::mutex device_mutex_;  // guards the making of what follows
  std::unique_ptr<DeviceLauncher> device_launcher_;
  std::atomic<DeviceLauncher*> device_{nullptr};  // the same, once it is made
  std::atomic<std::uint64_t> sequence_{0};        // operations issued so far

  std::atomic<std::thread::id> coalescing_thread_{};
  std::optional<DeviceLauncher::Block> device_block_;  // for that thread
  std::vector<HostMessage> host_messages_;             // for that thread
  std::mutex mutex_;                                   // guards what follows
  std::vector<WorkPtr> coalesced_;
  struct LastSplit {
    c10::weak_intrusive_ptr<c10d::Store> store;
    std::vector<int> ranks;
    c10::weak_intrusive_ptr<c10d::Backend> backend;
  };
  std::optional<LastSplit> last_split_;
};

}  // namespace symm
