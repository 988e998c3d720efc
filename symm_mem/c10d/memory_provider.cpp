#include <symm/memory_provider.hpp>

#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/group_links.hpp"
#include "symm_mem/c10d/provider_registry.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "symm_mem/device/device_library.hpp"

// PyTorch's functions that report the libraries it was built with. Declared here because its
// headers need CUDA's, and weak: in a PyTorch without the library the address is null.
namespace torch::cuda::nccl {
[[gnu::weak]] std::uint64_t version();  // major << 32 | minor << 16 | patch
}
namespace c10d::nvshmem_extension {
[[gnu::weak]] bool is_nvshmem_available();
}

namespace symm {
namespace {

namespace torch_memory = c10d::symmetric_memory;

// on_cpu, any_backend, signals, barrier, views, groups_known. PyTorch's NCCL has no barrier on its
// pads, and its NVSHMEM no signals either.
constexpr std::array<MemoryProvider, 4> kKnown = {{
    {"native", kSymmetricMemoryName, true, true, true, true, true, true},
    {"cuda", "CUDA", false, true, true, true, false, false},
    {"nccl", "NCCL", false, false, true, false, false, false},
    {"nvshmem", "NVSHMEM", false, false, false, false, false, false},
}};
constexpr std::uint64_t kNcclWithSignals = std::uint64_t{2} << 32 | std::uint64_t{29} << 16;

struct Choice {
  // Guards what follows. Recursive: freeing memory during an allocation may run Python code that
  // asks for the choice.
  std::recursive_mutex mutex;
  const MemoryProvider* chosen = nullptr;  // by name, or by the first allocation
  bool used = false;                       // memory was allocated: the choice is final
};

Choice& choice() {
  static Choice one;
  return one;
}

std::string quoted(const std::string& name) { return "'" + name + "'"; }

template <typename Predicate>
std::string names(const char* separator, Predicate&& has) {
  std::string text;
  for (const MemoryProvider& provider : kKnown) {
    if (has(provider)) text += (text.empty() ? "" : separator) + std::string(provider.name);
  }
  return text;
}

bool is(const MemoryProvider& provider, std::string_view name) { return provider.name == name; }

std::uint64_t nccl_version() {
  return torch::cuda::nccl::version == nullptr ? 0 : torch::cuda::nccl::version();
}

bool nvshmem_is_available() {
  return c10d::nvshmem_extension::is_nvshmem_available != nullptr &&
         c10d::nvshmem_extension::is_nvshmem_available();
}

bool can(const MemoryProvider& provider, MemoryProvider::Capability capability) {
  if (is(provider, "nccl") && capability == &MemoryProvider::signals) {
    return nccl_version() >= kNcclWithSignals;
  }
  return provider.*capability;
}

std::string able(MemoryProvider::Capability capability) {
  return names(" and ", [&](const auto& one) { return can(one, capability); });
}

const MemoryProvider* known(const std::string& name, const std::string& where) {
  for (const MemoryProvider& provider : kKnown) {
    if (name == provider.name) return &provider;
  }
  throw Error(ErrorCode::kInvalidArgument, where, ": expected one of ",
              names(", ", [](const auto&) { return true; }), ", got ", quoted(name));
}

// Null where it is unset.
const MemoryProvider* chosen_by_environment() {
  const char* const name = std::getenv("SYMM_MEMORY_PROVIDER");
  return name == nullptr || *name == '\0' ? nullptr : known(name, "SYMM_MEMORY_PROVIDER");
}

const MemoryProvider& in_force(const Choice& now) {
  if (now.chosen != nullptr) return *now.chosen;
  const MemoryProvider* const wanted = chosen_by_environment();
  return wanted == nullptr ? kKnown[0] : *wanted;
}

bool torch_has_cuda() { return c10::impl::hasDeviceGuardImpl(c10::kCUDA); }

// Why this PyTorch has not the provider, or "".
std::string problem_of(const MemoryProvider& provider) {
  if (is(provider, "native")) return "";
  if (!torch_has_cuda()) return "this torch was built without CUDA";
  if (is(provider, "nccl") && nccl_version() == 0) return "this torch was built without NCCL";
  if (is(provider, "nvshmem") && !nvshmem_is_available()) {
    return "this torch does not find NVSHMEM, or was built without it";
  }
  return "";
}

// Why symm has no memory of GPUs, or "".
std::string gpu_problem() {
  return torch_has_cuda() ? device_library_problem(gpu_kind())
                          : "this torch was built without CUDA";
}

std::optional<std::string> selected() { return torch_memory::get_backend(c10::Device(c10::kCUDA)); }

void check_not_in_use(const Choice& now, const MemoryProvider& wanted, const char* caller) {
  if (!now.used || now.chosen == &wanted) return;
  throw Error(ErrorCode::kUnsupported, caller, ": ", quoted(now.chosen->name),
              " is in use since the first allocation of symmetric memory, so ", quoted(wanted.name),
              " cannot be chosen; choose before the first one");
}

void set_in_torch(const MemoryProvider& provider, const std::string& before,
                  const std::string& caller) {
  try {
    torch_memory::set_backend(provider.torch_name);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ErrorCode::kUnsupported, caller, ": torch refuses the memory provider ",
                quoted(provider.name), " (", provider.torch_name, ") and keeps ", before, ": ",
                text.substr(0, text.find('\n')));
  }
  const std::string after = selected().value_or("none");
  if (after == provider.torch_name) return;
  throw Error(ErrorCode::kUnsupported, caller, ": torch keeps ", after, " although ",
              provider.torch_name, " was selected");
}

// Makes PyTorch's symmetric memory come from `provider`.
void select(const MemoryProvider& provider, const std::string& caller) {
  if (const std::string problem = problem_of(provider); !problem.empty()) {
    const auto usable = [](const auto& one) { return problem_of(one).empty(); };
    throw Error(ErrorCode::kUnsupported, caller, ": the memory provider ", quoted(provider.name),
                " cannot be used here: ", problem, "; usable: ", names(", ", usable));
  }
  if (is(provider, "native")) {
    register_symmetric_memory();
    // What is left is memory of the CPU, which no other provider has.
    if (!gpu_problem().empty()) return;
  }
  const std::string before = selected().value_or("none");
  // PyTorch refuses to select the one that it started out with, "CUDA" as a rule.
  if (before != provider.torch_name) set_in_torch(provider, before, caller);
}

void refuse_a_choice_made_in_torch(const MemoryProvider& provider, const std::string& caller) {
  const std::optional<std::string> theirs = selected();
  // PyTorch starts out with "CUDA", so that one need not be anybody's choice.
  if (!theirs || *theirs == "CUDA" || *theirs == provider.torch_name) return;
  throw Error(ErrorCode::kUnsupported, caller, ": torch's symmetric memory was set to ", *theirs,
              ", while the memory provider is ", quoted(provider.name),
              " by default; say which is meant by memory_provider() or SYMM_MEMORY_PROVIDER");
}

// PyTorch's NCCL provider needs a communicator of the group, which its first collective makes. A
// group counts as prepared once that has succeeded, so a failure can be tried again.
void make_communicator(const at::Tensor& tensor,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::string& caller) {
  static std::mutex mutex;
  static std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> prepared;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(prepared, [](const auto& one) { return one.expired(); });
    for (const auto& one : prepared) {
      if (one._unsafe_get_target() == group.get()) return;
    }
  }
  const auto devices = group->getDeviceTypes();
  const bool on_gpu = std::find(devices.begin(), devices.end(), c10::kCUDA) != devices.end();
  const std::string backend =
      on_gpu ? group->getBackend(c10::kCUDA)->getBackendName() : "no backend for cuda";
  if (backend != "nccl") {
    throw Error(ErrorCode::kUnsupported, caller,
                ": group: the memory provider 'nccl' serves groups whose backend is nccl, got ",
                quoted(group->getGroupName()), " with ", backend, "; ",
                able(&MemoryProvider::any_backend), " serve any");
  }
  std::vector<at::Tensor> one = {at::zeros({1}, tensor.options().dtype(c10::kFloat))};
  group->allreduce(one)->wait();
  const std::lock_guard lock(mutex);
  prepared.emplace_back(group);
}

}  // namespace

std::string memory_provider(const std::optional<std::string>& name) {
  return with_torch_errors([&]() -> std::string {
    Choice& now = choice();
    const std::lock_guard lock(now.mutex);
    if (!name) return in_force(now).name;
    const MemoryProvider* const wanted = known(*name, "memory_provider: name");
    check_not_in_use(now, *wanted, "memory_provider");
    select(*wanted, "memory_provider");
    now.chosen = wanted;
    return wanted->name;
  });
}

std::map<std::string, std::string> providers() {
  std::map<std::string, std::string> found;
  for (const MemoryProvider& provider : kKnown) found[provider.name] = problem_of(provider);
  return found;
}

const MemoryProvider& current_memory_provider() {
  Choice& now = choice();
  const std::lock_guard lock(now.mutex);
  return in_force(now);
}

void require(const MemoryProvider& provider, MemoryProvider::Capability capability,
             const std::string& what, const std::string& caller) {
  if (can(provider, capability)) return;
  throw_torch_error(Error(ErrorCode::kUnsupported, caller, ": the memory provider ",
                          quoted(provider.name), " has no ", what, "; ", able(capability),
                          " can do it: choose one by memory_provider() or SYMM_MEMORY_PROVIDER"));
}

void allocate_from_provider(c10::Device device, const std::string& caller,
                            const std::function<void()>& allocate) {
  Choice& now = choice();
  const std::lock_guard lock(now.mutex);
  const MemoryProvider& provider = in_force(now);
  const auto serves = [&](const MemoryProvider& one) {
    return device.is_cuda() || (device.is_cpu() && one.on_cpu);
  };
  if (!serves(provider)) {
    const std::string others = names(", ", serves);
    throw Error(ErrorCode::kUnsupported, caller, ": device: the memory provider ",
                quoted(provider.name), " has no memory on ",
                c10::DeviceTypeName(device.type(), true),
                "; providers that have: ", (others.empty() ? "none" : others));
  }
  if (now.chosen == nullptr && chosen_by_environment() == nullptr) {
    refuse_a_choice_made_in_torch(provider, caller);
  }
  // For memory of the CPU as well, since PyTorch exchanges nothing after any first use.
  select(provider, caller);
  if (is(provider, "native") && device.is_cuda()) {
    const std::string problem = gpu_problem();
    if (!problem.empty()) throw Error(ErrorCode::kUnsupported, caller, ": device: ", problem);
  }
  allocate();
  now.chosen = &provider;
  now.used = true;
}

c10::intrusive_ptr<c10d::ProcessGroup> group_named(const std::string& name,
                                                   const std::string& caller) {
  try {
    return group_by_name(name);
  } catch (const c10::Error&) {
    throw Error(ErrorCode::kInvalidArgument, caller, ": group: this rank has no group named ",
                quoted(name), "; it may have been destroyed");
  }
}

c10::intrusive_ptr<torch_memory::SymmetricMemory> rendezvous(const at::Tensor& tensor,
                                                             const std::string& group_name,
                                                             const std::string& caller) {
  const auto group = group_named(group_name, caller);
  register_symmetric_memory();
  if (tensor.is_cuda() && is(current_memory_provider(), "nccl")) {
    make_communicator(tensor, group, caller);
  }
  return torch_memory::rendezvous(tensor, group_name);
}

}  // namespace symm
