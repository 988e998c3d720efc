#include <symm/memory_provider.hpp>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <array>
#include <cstdlib>
#include <mutex>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/gpu_access.hpp"
#include "symm_mem/c10d/provider_choice.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "symm_mem/device/device_library.hpp"

namespace symm {
namespace {

namespace torch_memory = c10d::symmetric_memory;

// PyTorch's NCCL has no barrier on its pads, and its NVSHMEM no signals either.
constexpr std::array<MemoryProvider, 4> kKnown = {{
    {"native", kSymmetricMemoryName, true, true, true, true},
    {"cuda", "CUDA", false, true, true, false},
    {"nccl", "NCCL", false, true, false, false},
    {"nvshmem", "NVSHMEM", false, false, false, false},
}};

struct Choice {
  std::mutex mutex;                        // guards what follows
  const MemoryProvider* chosen = nullptr;  // by name, or by the first allocation
  bool used = false;                       // memory was allocated, so that the choice stands
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

const MemoryProvider* known(const std::string& name, const std::string& where) {
  for (const MemoryProvider& provider : kKnown) {
    if (name == provider.name) return &provider;
  }
  throw Error(ErrorCode::kInvalidArgument, where + ": expected one of " +
                                               names(", ", [](const auto&) { return true; }) +
                                               ", got " + quoted(name));
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

bool is_native(const MemoryProvider& provider) { return &provider == kKnown.data(); }

// Why symm has no memory of GPUs, or "".
std::string gpu_problem() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return "this LibTorch has no CUDA";
  return device_library_problem(gpu_kind());
}

std::optional<std::string> selected() { return torch_memory::get_backend(c10::Device(c10::kCUDA)); }

// Why PyTorch refuses that allocator, or "". It checks before it changes anything, and refuses the
// one that it started out with (as a rule "CUDA"), even while that is the selected one.
std::string set_in_torch(const std::string& torch_name) {
  try {
    torch_memory::set_backend(torch_name);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  }
  const std::string now = selected().value_or("none");
  return now == torch_name ? "" : "torch keeps " + now + " although it was selected";
}

std::string select_in_torch(const std::string& torch_name) {
  return selected() == torch_name ? "" : set_in_torch(torch_name);
}

// Only selecting an allocator tells whether PyTorch has it. Where there is no way back from that,
// nothing is held against the others.
std::map<std::string, std::string> problems() {
  const std::optional<std::string> before = selected();
  const bool can_return = !before || set_in_torch(*before).empty();
  std::map<std::string, std::string> found;
  for (const MemoryProvider& provider : kKnown) {
    const bool tried = can_return && !is_native(provider);
    found[provider.name] = tried ? set_in_torch(provider.torch_name) : "";
  }
  if (before) select_in_torch(*before);
  return found;
}

void check_not_in_use(const Choice& now, const MemoryProvider& wanted, const char* caller) {
  if (!now.used || now.chosen == &wanted) return;
  throw Error(ErrorCode::kUnsupported,
              std::string(caller) + ": " + quoted(now.chosen->name) +
                  " is in use since the first allocation of symmetric memory, so " +
                  quoted(wanted.name) + " cannot be chosen; choose before the first one");
}

// Makes PyTorch's symmetric memory come from `provider`.
void select(const MemoryProvider& provider, const std::string& caller) {
  if (is_native(provider)) {
    register_symmetric_memory();
    // What is left is memory of the CPU, which no other provider has.
    if (!gpu_problem().empty()) return;
  }
  const std::string problem = select_in_torch(provider.torch_name);
  if (problem.empty()) return;
  const auto found = problems();
  const auto usable = [&](const auto& one) { return found.at(one.name).empty(); };
  throw Error(ErrorCode::kUnsupported, caller + ": the memory provider " + quoted(provider.name) +
                                           " cannot be used here: " + problem +
                                           "; usable: " + names(", ", usable));
}

void refuse_a_choice_made_in_torch(const MemoryProvider& provider, const std::string& caller) {
  const std::optional<std::string> theirs = selected();
  // PyTorch starts out with "CUDA", so that one need not be anybody's choice.
  if (!theirs || *theirs == "CUDA" || *theirs == provider.torch_name) return;
  throw Error(ErrorCode::kUnsupported,
              caller + ": torch's symmetric memory was set to " + *theirs +
                  ", while the memory provider is " + quoted(provider.name) +
                  " by default; say which is meant by memory_provider() or SYMM_MEMORY_PROVIDER");
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

MemoryProviderChoice memory_provider_choice() {
  Choice& now = choice();
  const std::lock_guard lock(now.mutex);
  return {.name = now.chosen == nullptr ? "" : now.chosen->name, .used = now.used};
}

void record_memory_provider(const std::string& name, bool used) {
  with_torch_errors([&] {
    Choice& now = choice();
    const std::lock_guard lock(now.mutex);
    const MemoryProvider* const wanted = known(name, "record_memory_provider: name");
    check_not_in_use(now, *wanted, "record_memory_provider");
    now.chosen = wanted;
    now.used = now.used || used;
  });
}

std::map<std::string, std::string> providers() {
  const std::lock_guard lock(choice().mutex);
  return problems();
}

const MemoryProvider& current_memory_provider() {
  Choice& now = choice();
  const std::lock_guard lock(now.mutex);
  return in_force(now);
}

void require(const MemoryProvider& provider, MemoryProvider::Capability capability,
             const std::string& what, const std::string& caller) {
  if (provider.*capability) return;
  throw_torch_error(
      Error(ErrorCode::kUnsupported,
            caller + ": the memory provider " + quoted(provider.name) + " has no " + what + "; " +
                names(" and ", [&](const auto& one) { return one.*capability; }) +
                " can do it: choose one by memory_provider() or SYMM_MEMORY_PROVIDER"));
}

at::Tensor allocate_from_provider(c10::Device device, const std::string& caller,
                                  const std::function<at::Tensor()>& allocate) {
  Choice& now = choice();
  const std::lock_guard lock(now.mutex);
  const MemoryProvider& provider = in_force(now);
  const auto serves = [&](const MemoryProvider& one) {
    return device.is_cuda() || (device.is_cpu() && one.on_cpu);
  };
  if (!serves(provider)) {
    const std::string others = names(", ", serves);
    throw Error(ErrorCode::kUnsupported,
                caller + ": device: the memory provider " + quoted(provider.name) +
                    " has no memory on " + c10::DeviceTypeName(device.type(), true) +
                    "; providers that have: " + (others.empty() ? "none" : others));
  }
  if (now.chosen == nullptr && chosen_by_environment() == nullptr) {
    refuse_a_choice_made_in_torch(provider, caller);
  }
  // For memory of the CPU as well, since PyTorch exchanges nothing after any first use.
  select(provider, caller);
  if (is_native(provider) && device.is_cuda()) {
    const std::string problem = gpu_problem();
    if (!problem.empty()) throw Error(ErrorCode::kUnsupported, caller + ": device: " + problem);
  }
  at::Tensor tensor = allocate();
  now.chosen = &provider;
  now.used = true;
  return tensor;
}

}  // namespace symm
