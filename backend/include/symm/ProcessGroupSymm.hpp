// The c10d backend "symm": every collective of a torch.distributed process group, carried out by
// this library's own kernels.
//
// NOTE [Where an operation runs]
// asyncOp == false: on the caller's thread, when nothing of this group is queued; the returned Work
// is finished and errors are thrown by the call itself. Else, and between startCoalescing and
// endCoalescing: on the group's queue, in the order of the calls. A synchronous call that finds the
// queue busy is queued and waited for. What a callback of the group's futures calls runs at once,
// on the callback's thread, before what is queued; callbacks of messages run on threads of their
// own and their calls are queued. send and recv start at once, those between startCoalescing and
// endCoalescing all together at the end, and progress by themselves.
//
// Operations on a GPU are put on a stream by the call, which returns before they have run; they and
// those on the host are two orders that do not wait for each other. barrier() is in both: the host
// first waits until the device has done what was put on it before, then meets the other ranks.
// Where the current stream is captured, it is an operation on the device.
//
// All collectives are collective over the group and must be called in the same order on every rank.
// Wrong arguments raise c10::ValueError, dtypes that differ c10::TypeError (in Python types that
// are both, torch_symm/errors.py), what this build or device cannot do c10::NotImplementedError,
// failures of peers and time-outs c10::DistBackendError. Thread safety: as c10d's: calls from
// several threads are safe, their order is the caller's care. They block; call them without
// Python's interpreter lock.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <symm/ProcessGroupSymmOptions.hpp>
#include <unordered_map>
#include <vector>

namespace symm {

class ProcessGroupSymm final : public c10d::Backend {
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
  // Of one tensor in coordinates (torch.sparse_coo), which becomes coalesced with the union of the
  // ranks' entries; SUM alone, the bits of the dense tensors' all_reduce. On a GPU the host waits
  // for the result, and a graph capture is refused. allreduce() takes such tensors too.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
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
  // The root's `output` holds every rank's input, one after the other; elsewhere it is not looked
  // at. From torch 2.14 on this overrides.
  // NOLINTNEXTLINE(modernize-use-override)
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
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
  // Without the group ranks `excluded`, which need not be there any more, nor need this group be in
  // order: the ranks that are left make a new one through the group's Store. They keep their order.
  // Collective over them. `flags`: c10d's SHRINK_ABORT, 1, aborts this group first.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // A new group of `size` ranks, this one as `rank`, which may come from several groups; `store` is
  // its own. Collective over the new group.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;

  // `hook` gets a record of each operation that is issued from now on, once it has ended, well or
  // not: its type, its sequence number, when it was called and when its end was seen; the active
  // duration is the time between the two, in seconds. One hook a group, before anything needs it,
  // which may call no waitForPendingWorks(). It runs on a thread of its own; what it throws is
  // logged. What is captured in a graph is not reported. Once the group is destroyed no hook is
  // called: call waitForPendingWorks() before, as destroy_process_group() does. ValueError for a
  // second hook, NotImplementedError in a group over several hosts. Local.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Blocks until every operation that this rank has issued has ended and the hook, if there is one,
  // was told. Throws what a GPU throws, and nothing for operations that have failed. Local.
  void waitForPendingWorks() override;

  // Memory of the CPU that can become symmetric (torch.distributed._symmetric_memory.rendezvous,
  // torch_symm.as_symmetric), and is kept for the next request when it is freed. allocateTensor
  // gives one dimension of `size` elements, not initialised. ValueError for a wrong size,
  // NotImplementedError for another device. Local; `device_index` of the CPU is -1.
  bool supportsTensorAlloc(c10::DeviceIndex device_index) override { return device_index < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  // Between the two the group has no memory for staged data: its workspace on the CPU and, where
  // every rank has run a collective on its GPU, its memory there, whose contents the process keeps.
  // Addresses stay, so that graphs that were captured before can be replayed afterwards, and not
  // meanwhile. Tensors in symmetric memory stay as they are. Calls of a suspended group raise
  // DistBackendError, as do a second suspend() and resume() of a group that is not suspended; it
  // can be destroyed, aborted and asked for its memory. Collective, both: a rank that does not come
  // within the group's time-out, or has died, is named. What this rank has issued ends first; a
  // message on a GPU whose other end was not issued runs into its time-out. ValueError inside a
  // coalescing block, NotImplementedError in a group over several hosts. From torch 2.13 on these
  // override, as does getMemoryStats(). NOLINTBEGIN(modernize-use-override)
  void suspend();
  void resume();

  // Bytes that this group has on this rank, by c10d's names: "total" of them, "persist" of which
  // stay while the group is suspended, "suspend" that suspend() gives back, or has given back;
  // "suspended" is 1 for a suspended group. Beside them "host" and "device", the two parts of
  // "total". What torch.distributed._symmetric_memory has allocated is not counted; in a group over
  // several hosts, nor is what the other backend has. Local.
  std::unordered_map<std::string, std::uint64_t> getMemoryStats();
  // NOLINTEND(modernize-use-override)

  void setTimeout(std::chrono::milliseconds timeout) override;
  // Ranks count their operations alike from the start, so there is nothing to exchange.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override;
  void enableCollectivesTiming() override {}
  // Makes and connects the group's half on a GPU, which else the first operation there does.
  // Collective for a GPU; nothing is to be done for the host.
  void eagerConnectSingleDevice(at::Device device) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // Of c10::intrusive_ptr, once nobody holds the group any more.
  void release_resources() override;

  // Known to this library alone.
  class Impl;

 private:
  std::unique_ptr<Impl> impl_;  // until nobody holds the group any more
};

}  // namespace symm
