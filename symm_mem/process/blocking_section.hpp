// How this library waits for threads when its caller may hold a lock that those threads need.
//
// Python destroys objects under its interpreter lock, while a completion callback on one of our
// threads may be waiting for that lock. The library knows nothing of Python, so the module that
// does installs a hook, and every wait for a thread goes through blocking_section().
#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace symm {

// Calls body(context) exactly once, without the lock where the calling thread held it.
using BlockingHook = void (*)(void (*body)(void*), void* context);

// Once per process, before the first group exists. nullptr removes the hook. Thread safe.
void set_blocking_hook(BlockingHook hook) noexcept;

void run_blocking_section(void (*body)(void*), void* context);

// `body` must not throw.
template <typename Body>
void blocking_section(Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  run_blocking_section([](void* context) { (*static_cast<Callable*>(context))(); }, &body);
}

// The same for a `body` that may throw and returns a value; its exception is thrown on.
template <typename Body>
auto blocking_call(Body&& body) {
  std::exception_ptr failure;
  std::optional<std::invoke_result_t<Body&>> result;
  blocking_section([&] {
    try {
      result.emplace(body());
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return std::move(*result);
}

}  // namespace symm
