// What PyTorch's profiler learns of the operations of a group, beside the range of their Work.
//
// Around each call of an operation there is an event "record_param_comms", as ProcessGroupNCCL
// makes them, with the tensors, the group and its ranks, the collective's name there, the numbers
// of elements, splits and whether it is asynchronous; traces, execution traces and the tools that
// read them know it. It is on the caller's thread and ends with the call. Made only while somebody
// profiles.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/collective_call.hpp"

namespace symm {

using ProfiledTensors = std::optional<std::vector<at::Tensor>>;

// The tensors that an operation reads, for the range of its Work; none where it has no title.
ProfiledTensors profiled_inputs(const char* title, const CallBatch& calls);

inline ProfiledTensors profiled_tensor(const char* title, const at::Tensor& tensor) {
  if (title == nullptr) return std::nullopt;
  return std::vector<at::Tensor>{tensor};
}

struct ProfiledCall {
  std::string name;
  std::int64_t sequence = 0;
  bool is_message = false;
  int rank = 0;  // of a message the peer
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::int64_t> input_splits;  // rows, where ranks get or send unequal numbers of them
  std::vector<std::int64_t> output_splits;
  bool async_op = false;

  static ProfiledCall collective(c10d::OpType type, const CallBatch& calls, int rank,
                                 std::uint64_t sequence, bool async_op);
  static ProfiledCall message(const at::Tensor& tensor, bool is_send, int peer,
                              std::uint64_t sequence);
};

// What all operations of one group have in common.
class ProfiledGroup {
 public:
  // `group` outlives the object.
  ProfiledGroup(const c10d::Backend& group, const std::vector<std::int64_t>& global_ranks);

  // What `body` returns or throws, inside the event.
  using Body = std::function<c10::intrusive_ptr<c10d::Work>()>;
  c10::intrusive_ptr<c10d::Work> record(const ProfiledCall& call, const Body& body) const;

 private:
  const c10d::Backend& group_;
  int first_global_rank_ = 0;
  int stride_ = 0;  // of the global ranks; 0 where they have none
};

}  // namespace symm
