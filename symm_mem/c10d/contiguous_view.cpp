#include "symm_mem/c10d/contiguous_view.hpp"

#include <ATen/ops/from_blob.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <algorithm>
#include <memory>
#include <string_view>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/provider_registry.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {
namespace {

// What a rank says of its tensor, in the words of a round.
enum ViewWord : std::size_t {
  kProblem,
  kAllocationId,
  kOffset,
  kDtype,
  kDims,
  kShapeHash,
  kFirstSize
};
constexpr std::size_t kNamedSizes = 6;
using Words = std::vector<std::uint64_t>;

enum class Problem : std::uint64_t { kNone, kNotSymmetric, kNotContiguous };

struct Input {
  std::shared_ptr<Allocation> allocation;
  std::size_t offset = 0;  // bytes into the allocation
  Problem problem = Problem::kNone;
};

// The storage's pointer, because an empty tensor has none of its own.
const std::byte* start_of(const at::Tensor& tensor) {
  const auto* storage = static_cast<const std::byte*>(tensor.storage().data());
  return storage + tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize());
}

std::shared_ptr<Allocation> allocation_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return nullptr;
  auto allocation = find_allocation(tensor.storage().data());
  return allocation && allocation->device() == tensor.device() ? allocation : nullptr;
}

Input examine(const at::Tensor& tensor) {
  Input input;
  input.allocation = allocation_of(tensor);
  if (!input.allocation) {
    input.problem = Problem::kNotSymmetric;
    return input;
  }
  input.offset = static_cast<std::size_t>(start_of(tensor) - input.allocation->base());
  if (!tensor.is_contiguous()) input.problem = Problem::kNotContiguous;
  return input;
}

// `given` says what came: its dtype, shape and, where they are known, strides.
std::string problem_text(Problem problem, const std::string& given) {
  return problem == Problem::kNotSymmetric
             ? "tensor: expected one in symmetric memory of SYMM, got " + given +
                   " in other memory; allocate it by torch_symm.empty, or pass what "
                   "torch_symm.as_symmetric returns"
             : "tensor: expected a contiguous one, got " + given +
                   ", which has gaps or permuted dimensions; copy it into one of torch_symm.empty";
}

// What this rank has given.
std::string describe(const at::Tensor& tensor, Problem problem) {
  std::string text = text_of(c10::toString(tensor.scalar_type()), " ", printed(tensor.sizes()));
  if (problem == Problem::kNotContiguous) text += " with strides " + printed(tensor.strides());
  return text;
}

std::uint64_t hash_of(at::IntArrayRef sizes) {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::int64_t size : sizes) {
    hash = (hash ^ static_cast<std::uint64_t>(size)) * 1099511628211u;
  }
  return hash;
}

Words words_of(const at::Tensor& tensor, const Input& input, std::uint64_t id) {
  Words words(kFirstSize + kNamedSizes);
  words[kProblem] = static_cast<std::uint64_t>(input.problem);
  words[kAllocationId] = id;
  words[kOffset] = input.offset;
  words[kDtype] = static_cast<std::uint64_t>(tensor.scalar_type());
  words[kDims] = static_cast<std::uint64_t>(tensor.dim());
  words[kShapeHash] = hash_of(tensor.sizes());
  for (std::size_t i = 0; i < std::min(kNamedSizes, tensor.sizes().size()); ++i) {
    words[kFirstSize + i] = static_cast<std::uint64_t>(tensor.sizes()[i]);
  }
  return words;
}

// "Float [2, 3]".
std::string describe(const Words& words) {
  std::vector<std::int64_t> sizes(std::min<std::size_t>(words[kDims], kNamedSizes));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = static_cast<std::int64_t>(words[kFirstSize + i]);
  }
  const std::uint64_t last = static_cast<std::uint64_t>(c10::ScalarType::NumOptions);
  const auto dtype = static_cast<c10::ScalarType>(std::min(words[kDtype], last));
  std::string text = text_of(c10::toString(dtype), " ", printed(sizes));
  if (words[kDims] > kNamedSizes) text += text_of(" of ", words[kDims], " dimensions");
  return text;
}

// "Float [2, 3] at byte 64".
std::string describe_place(const Words& words) {
  return text_of(describe(words), " at byte ", words[kOffset]);
}

// All ranks have the same words, so all throw or none.
void check_agreement(const LocalGroup& peers, const std::vector<Words>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto problem = static_cast<Problem>(all[rank][kProblem]);
    if (problem == Problem::kNone) continue;
    if (static_cast<int>(rank) == peers.rank()) continue;  // has its own, plainer error
    throw Error(ErrorCode::kMismatch, peers.memory_prefix(),
                "contiguous_view: ", peers.rank_name(static_cast<int>(rank)), " passed a wrong ",
                problem_text(problem, describe(all[rank])));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (std::equal(all[0].begin() + kOffset, all[0].end(), all[rank].begin() + kOffset)) continue;
    throw Error(ErrorCode::kMismatch, peers.memory_prefix(),
                "contiguous_view: expected the same shape, dtype and offset on every rank, got ",
                describe_place(all[0]), " on ", peers.rank_name(0), " and ",
                describe_place(all[rank]), " on ", peers.rank_name(static_cast<int>(rank)));
  }
}

// The memory of `input` in the group, after all ranks have said what they bring.
std::shared_ptr<SharedAllocation> agree(const at::Tensor& tensor, const Input& input,
                                        const std::string& group_name) {
  const std::shared_ptr<GroupLink> link = link_of_group(group_name);
  LocalGroup& peers = link->peers();
  const auto order = peers.hold();
  std::shared_ptr<SharedAllocation> known;
  if (input.allocation) known = input.allocation->shared_with(link->group());
  const auto words = words_of(tensor, input, known ? known->id() : 0);
  const auto [number, everybody] =
      peers.exchange_words(LocalGroup::Purpose::kView, words, words.size(),
                           Deadline(link->timeout(tensor.device().type())));
  if (input.problem != Problem::kNone) {
    throw Error(ErrorCode::kInvalidArgument, peers.memory_prefix(),
                "contiguous_view: ", problem_text(input.problem, describe(tensor, input.problem)));
  }
  check_agreement(peers, everybody);
  const bool all_know =
      known && std::all_of(everybody.begin(), everybody.end(), [&](const auto& theirs) {
        return theirs[kAllocationId] == words[kAllocationId];
      });
  return all_know ? known : input.allocation->share(group_name);
}

at::Tensor view_of(const at::Tensor& tensor, const Input& input, SharedAllocation& shared) {
  Segment::ContiguousView view = shared.buffers()->contiguous_view();
  if (view.stride_bytes % tensor.itemsize() != 0) {
    throw Error(ErrorCode::kUnsupported, "contiguous_view: the ranks' memory is apart by ",
                view.stride_bytes, " bytes, which is no multiple of the ", tensor.itemsize(),
                " bytes of an element");
  }
  std::vector<std::int64_t> sizes = {shared.buffers()->world_size()};
  sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
  std::vector<std::int64_t> strides = {
      static_cast<std::int64_t>(view.stride_bytes / tensor.itemsize())};
  strides.insert(strides.end(), tensor.strides().begin(), tensor.strides().end());
  DeviceOwned owner(tensor.device(), std::move(view.owner));
  return at::for_blob(view.base + input.offset, sizes)
      .strides(strides)
      .deleter([owner = std::move(owner)](void*) mutable { owner.let_go(); })
      .options(tensor.options().requires_grad(false))
      .target_device(tensor.device())
      .make_tensor();
}

// Whether one of PyTorch's own providers is in force and has allocated the memory of `tensor`,
// which PyTorch reports from 2.12 on.
bool is_of_torch([[maybe_unused]] const at::Tensor& tensor, const MemoryProvider& provider) {
  if (std::string_view(provider.name) == "native") return false;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  return c10d::symmetric_memory::is_symm_mem_tensor(tensor);
#else
  return false;
#endif
}

}  // namespace

at::Tensor contiguous_view(const at::Tensor& tensor, const std::string& group_name) {
  return with_torch_errors([&] {
    if (tensor.is_cuda()) {
      require(current_memory_provider(), &MemoryProvider::views, "contiguous view",
              "contiguous_view");
    }
    const Input input = examine(tensor);
    return blocking_call([&] {
      const std::shared_ptr<SharedAllocation> shared = agree(tensor, input, group_name);
      return view_of(tensor, input, *shared);
    });
  });
}

bool share(const at::Tensor& tensor, const std::string& group_name, bool symmetric) {
  return with_torch_errors([&] {
    const std::shared_ptr<Allocation> allocation = allocation_of(tensor);
    if (!allocation) return false;
    return blocking_call([&] {
      allocation->share(group_name, symmetric);
      return true;
    });
  });
}

bool is_symmetric(const at::Tensor& tensor, const std::optional<std::string>& group_name) {
  const std::shared_ptr<Allocation> allocation = allocation_of(tensor);
  const auto group = group_name ? group_by_name(*group_name) : nullptr;
  if (allocation) return !group || allocation->shared_with(group.get()) != nullptr;
  return with_torch_errors([&] {
    const MemoryProvider& provider = current_memory_provider();
    if (!is_of_torch(tensor, provider)) return false;
    if (group) {
      require(provider, &MemoryProvider::groups_known, "record of the groups of its memory",
              "is_symmetric");
    }
    return true;
  });
}

std::optional<std::pair<std::int64_t, std::int64_t>> place_of(const at::Tensor& tensor) {
  const std::shared_ptr<Allocation> allocation = allocation_of(tensor);
  if (allocation && !allocation->is_user_buffer()) {
    return std::pair(static_cast<std::int64_t>(start_of(tensor) - allocation->base()),
                     static_cast<std::int64_t>(allocation->bytes()));
  }
  return with_torch_errors([&]() -> std::optional<std::pair<std::int64_t, std::int64_t>> {
    if (allocation || !is_of_torch(tensor, current_memory_provider())) return std::nullopt;
    return std::pair(tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize()),
                     static_cast<std::int64_t>(tensor.storage().nbytes()));
  });
}

std::vector<std::string> all_gather_message(const std::string& group_name,
                                            const std::string& message) {
  return with_torch_errors([&] {
    return blocking_call([&] {
      const std::shared_ptr<GroupLink> link = link_of_group(group_name);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(message.data());
      const auto metadata =
          link->peers().exchange_metadata(LocalGroup::Purpose::kMessage, {bytes, message.size()},
                                          Deadline(link->timeout(c10::kCPU)));
      std::vector<std::string> messages;
      for (const auto& one : metadata.messages) messages.emplace_back(one.begin(), one.end());
      return messages;
    });
  });
}

}  // namespace symm
