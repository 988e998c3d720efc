// What is behind the public header of ProcessGroupSymm: its state, and the steps that its
// operations share.
//
// A c10d member function of ProcessGroupSymm does three things: it checks the tensors and turns
// them into CollectiveArgs (collective_call.hpp), it runs them or queues them (issue), and it turns
// symm::Error into PyTorch's exception (errors.hpp). Everything else is below the torch seam.
//
// The members of the group's interface throw PyTorch's exceptions, all others Error.
//
// NOTE [Calls without a Work]
// A collective with async_op=False is done when it returns, or on a GPU on the caller's current
// stream: there is nothing to wait for, and c10d takes no Work for an answer, as it does from
// ProcessGroupNCCL. A failure raises, on a GPU in the group's next call. With SYMM_RETURN_WORK=1
// such a call gives its Work, for programs that call wait() on whatever a group gives them; a call
// that a profile watches has one too, which is its range, and so has one whose end a completion
// hook is told of. In a coalescing block on a GPU, whose Work cannot be waited for before its end,
// such a call has none.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <symm/ProcessGroupSymm.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "backend/WorkSymm.hpp"
#include "backend/call_audit.hpp"
#include "backend/collective_call.hpp"
#include "backend/configured_call.hpp"
#include "backend/device_launcher.hpp"
#include "backend/engine/group_engine.hpp"
#include "backend/engine/host/point_to_point.hpp"
#include "backend/group_flight.hpp"
#include "backend/hosts/host_group.hpp"
#include "backend/nan_check.hpp"
#include "backend/pending_works.hpp"
#include "backend/profiled_call.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/group_links.hpp"

namespace symm {

// What c10d and a profile call an operation.
struct Operation {
  c10d::OpType type;
  const char* title;  // null: no profile

  // A title makes c10d::Work record a profiler event; without a profiler that is pure cost, and so
  // is the question, which is asked once a call.
  Operation watched() const { return {type, at::hasCallbacks() ? title : nullptr}; }
};

// By CollectiveKind, in the form whose input and output are one tensor each.
inline constexpr std::array<Operation, kCollectiveKindCount> kOperations = {{
    {c10d::OpType::ALLREDUCE, "symm:all_reduce"},
    {c10d::OpType::REDUCE, "symm:reduce"},
    {c10d::OpType::BROADCAST, "symm:broadcast"},
    {c10d::OpType::_ALLGATHER_BASE, "symm:all_gather_single"},
    {c10d::OpType::GATHER, "symm:gather"},
    {c10d::OpType::SCATTER, "symm:scatter"},
    {c10d::OpType::_REDUCE_SCATTER_BASE, "symm:reduce_scatter_single"},
    {c10d::OpType::ALLTOALL_BASE, "symm:all_to_all_single"},
    {c10d::OpType::BARRIER, "symm:barrier"},
}};

constexpr const Operation& operation_of(CollectiveKind kind) {
  return kOperations[static_cast<std::size_t>(kind)];
}

class ProcessGroupSymm::Impl final : public SegmentUser {
 public:
  // `group` owns this object.
  Impl(const ProcessGroupSymm& group, const c10::intrusive_ptr<c10d::Store>& store,
       const c10::intrusive_ptr<Options>& options);
  ~Impl() override;

  static Impl& of(ProcessGroupSymm& group) { return *group.impl_; }

  // What the Python module adds to c10d's interface.

  // A collective with a plan and stages of its own (torch_symm.ccl). Collective; every rank must
  // give the same request and op, and stages or none. ValueError for what check_request() refuses.
  // nullptr for what needs no Work.
  WorkPtr run_configured(const ConfiguredCall& given, bool async_op);
  void all_reduce_rms_norm(const NormedSum& given);

  // Whether collectives would find `tensor`, on a GPU, in memory that has joined this group. Local.
  bool device_knows(const at::Tensor& tensor) const;

  // A barrier as an operation of the current stream where `device` is a GPU (capturable), as
  // barrier() on the host. nullopt: the GPU that the group uses or is bound to on this rank, the
  // host where there is none. `alike` is a number that all ranks must give, of what the barrier
  // comes before.
  void device_barrier(std::optional<at::Device> device, std::uint32_t alike);

  // Null where all ranks are on one host. Local.
  const HostGroup* hosts() const { return hosts_.get(); }

  // Memory of PyTorch's symmetric-memory API that has joined this group is read in place as well.
  std::shared_ptr<LocalGroup> local_group() override;
  TableRows free_rows() override;
  void prepare_segment(const Segment& segment) override;
  void add_segment(const std::shared_ptr<Segment>& segment, bool symmetric) override;
  void set_symmetric(const std::shared_ptr<Segment>& segment) override;
  void remove_segment(const std::shared_ptr<Segment>& segment) override;

 private:
  friend class ProcessGroupSymm;
  using Milliseconds = std::chrono::milliseconds;

  CallBuilder builder(CollectiveCall& call, CollectiveKind kind) const {
    return {call, kind, rank_, size_, global_rank(), gpu(), nan_check_};
  }

  // For messages; the group rank where the program has said nothing else.
  std::int64_t global_rank() const {
    const std::vector<std::uint64_t>& global = options_->global_ranks_in_group;
    return global.empty() ? rank_
                          : static_cast<std::int64_t>(global[static_cast<std::size_t>(rank_)]);
  }

  // Throws what the call would throw before anything is sent.
  void validate(const CollectiveArgs& args) const {
    if (hosts_) {
      hosts_->collectives().validate(args);
    } else {
      engine_->communicator().validate(args);
    }
  }
  // Throws kUnsupported, naming the hosts, where the group is over several.
  void check_one_host(const char* what) const;
  // Runs or queues `calls`; see NOTE [Where an operation runs].
  WorkPtr issue(const Operation& operation, CallBatch&& calls, Milliseconds timeout, bool async_op);
  WorkPtr put(const Operation& operation, CallBatch&& calls, Milliseconds limit, bool async_op);
  // A collective of one call, which `fill(builder)` describes, or of `count(checks)` calls: the
  // coalesced forms, with `fill(builder, number of the call)`.
  template <typename Opts, typename Fill>
  WorkPtr collective(CollectiveKind kind, const Operation& operation, const Opts& opts,
                     Fill&& fill) {
    return with_torch_errors([&] {
      CallBatch calls;
      calls.resize(1);
      CallBuilder call = builder(calls.front(), kind);
      fill(call);
      call.finish();
      return issue(operation, std::move(calls), opts.timeout, opts.asyncOp);
    });
  }
  template <typename Opts, typename Fill>
  WorkPtr collective(CollectiveKind kind, const Opts& opts, Fill&& fill) {
    return collective(kind, operation_of(kind), opts, std::forward<Fill>(fill));
  }
  template <typename Opts, typename Count, typename Fill>
  WorkPtr collectives(CollectiveKind kind, const Operation& operation, const Opts& opts,
                      Count&& count, Fill&& fill) {
    return with_torch_errors([&] {
      const TensorChecks checks(collective_name(kind), rank_, size_, global_rank());
      CallBatch calls;
      calls.resize(count(checks));
      for (std::size_t i = 0; i < calls.size(); ++i) {
        CallBuilder call = builder(calls[i], kind);
        fill(call, i);
        call.finish();
      }
      return issue(operation, std::move(calls), opts.timeout, opts.asyncOp);
    });
  }
  // NOTE [Sparse all_reduce] in sparse_all_reduce.hpp.
  void describe_sparse(CollectiveCall& call, const at::Tensor& tensor, const c10d::ReduceOp& op);
  WorkPtr all_reduce_sparse_on_device(ProcessGroupSymm& group, const at::Tensor& tensor,
                                      const c10d::AllreduceOptions& opts);
  // Whether a call with async_op=False does; NOTE [Calls without a Work].
  bool gives_work(const Operation& operation) const {
    return returns_work_ || operation.title != nullptr || pending_->has_hook();
  }
  WorkPtr run_inline(const Operation& operation, const CallBatch& calls, Milliseconds timeout);
  WorkPtr enqueue(const Operation& operation, CallBatch&& calls, Milliseconds timeout);

  // The GPU of this group on this rank: the one in use, else the one it is bound to, else -1.
  int gpu() const {
    if (const DeviceLauncher* device = device_.load(std::memory_order_acquire)) {
      return device->device().index();
    }
    const std::optional<at::Device>& bound = group_.bound_device_id_;
    return bound && bound->is_cuda() ? bound->index() : -1;
  }
  // The half on `device`, made on first use. Throws as DeviceLauncher::DeviceLauncher.
  DeviceLauncher& device_launcher(at::Device device);
  WorkPtr issue_on_device(const Operation& operation, const CallBatch& calls, Milliseconds timeout,
                          bool async_op);
  // The barrier: on the device inside a capture, else on the host behind the device's work.
  // Collective where `opts` names the GPU of a group that has not used one.
  CallBatch barrier_call(const c10d::BarrierOptions& opts);

  // SEND, RECV or RECVANYSOURCE.
  WorkPtr transfer(c10d::OpType type, Tensors& tensors, int peer, int tag);
  // `op` moves `tensor`.
  WorkPtr put_message(const Operation& operation, const at::Tensor& tensor, const TransferOp& op);
  WorkPtr transfer_on_device(const Operation& operation, const at::Tensor& tensor,
                             const TransferOp& op);
  // Of a tensor on the GPU, to or from another host through memory of the CPU.
  WorkPtr staged_transfer(const at::Tensor& tensor, const TransferOp& op);
  WorkPtr transfer_between_hosts(const Operation& operation, const at::Tensor& tensor,
                                 const TransferOp& op);
  WorkPtr transfer_on_host(const Operation& operation, const at::Tensor& tensor,
                           const TransferOp& op, int peer);

  bool coalescing() const {
    return coalescing_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // A coalescing block is on one device. Throws kUnsupported.
  void check_block(at::Device device);
  void add_coalesced(const WorkPtr& work);
  // Of what is on a stream: the completion hook, if there is one, gets its end.
  void follow(DeviceWork& work);
  // Of the call that the record knows as `ticket`, once it is on a stream.
  void note_on_device(const FlightTicket& ticket, const DeviceProgress& progress);
  // A message on the host that waits for the end of its block.
  struct HostMessage {
    Message message;
    c10::intrusive_ptr<TransferWork> work;
  };
  // On the device a message of a block is counted when the block ends.
  struct DeviceMessage {
    TransferOp op;
    FlightTicket ticket;
  };
  void start_messages(std::vector<HostMessage> block);
  // Both once device_launcher() has been called.
  c10::intrusive_ptr<DeviceWork> device_work(const Operation& operation, TensorVector outputs,
                                             std::uint64_t sequence,
                                             const ProfiledTensors& inputs = std::nullopt);
  DeviceLauncher::Block& device_block(std::uint64_t sequence);
  void end_device_block(DeviceLauncher::Block& block);

  // Options of a group of these of the group's ranks; `given` may be null.
  c10::intrusive_ptr<Options> options_for(
      const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& given) const;

  const ProcessGroupSymm& group_;
  const int rank_;
  const int size_;
  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const NanCheck nan_check_;
  const bool returns_work_;  // also of a call with nothing to wait for
  std::unique_ptr<GroupFlight> flight_;
  std::optional<ProfiledGroup> profiled_;  // from the constructor on
  std::shared_ptr<CallAudit> audit_;       // null where SYMM_AUDIT is not set
  // Of a group over several hosts, else null; engine_ is then that of this host's ranks.
  std::shared_ptr<HostGroup> hosts_;
  std::shared_ptr<GroupEngine> engine_;
  std::shared_ptr<PendingWorks> pending_;  // of the host; of the GPU while there is a hook
  std::mutex device_mutex_;                // guards the making of what follows
  std::unique_ptr<DeviceLauncher> device_launcher_;
  std::atomic<DeviceLauncher*> device_{nullptr};  // the same, once it is made
  std::atomic<std::uint64_t> sequence_{0};        // operations issued so far

  std::atomic<std::thread::id> coalescing_thread_{};
  std::optional<DeviceLauncher::Block> device_block_;  // for that thread
  std::vector<HostMessage> host_messages_;             // for that thread
  std::vector<DeviceMessage> device_messages_;         // for that thread
  std::vector<WorkPtr> staged_;                        // messages of the GPU, for that thread
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
