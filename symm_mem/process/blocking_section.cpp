#include "symm_mem/process/blocking_section.hpp"

#include <atomic>

namespace symm {

namespace {

std::atomic<BlockingHook> installed_hook{nullptr};

}  // namespace

void set_blocking_hook(BlockingHook hook) noexcept {
  installed_hook.store(hook, std::memory_order_release);
}

void run_blocking_section(void (*body)(void*), void* context) {
  if (const BlockingHook hook = installed_hook.load(std::memory_order_acquire)) {
    hook(body, context);
  } else {
    body(context);
  }
}

}  // namespace symm
