// Counts the calls of CUDA's driver API in this process by name, between two marks.
//
// A shared library for driver_calls.py, which builds and loads it. CUPTI tells of every driver
// call, whoever makes it: torch's runtime, or a statically linked one that takes the driver's entry
// points itself. Calls of all threads count. Plain C functions; one user at a time.
#include <cupti.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

constexpr std::size_t kMostCallbacks = 2048;

struct Entry {
  std::atomic<const char*> name{nullptr};  // CUPTI's own, lives as long as the process
  std::atomic<std::uint64_t> calls{0};
};

std::array<Entry, kMostCallbacks>& entries() {
  static std::array<Entry, kMostCallbacks> all;
  return all;
}

std::atomic<bool> is_counting{false};

void CUPTIAPI count_call(void* /*user*/, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                         const void* data) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || id >= kMostCallbacks || !is_counting.load()) return;
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite != CUPTI_API_ENTER) return;
  entries()[id].name.store(call->functionName);
  entries()[id].calls.fetch_add(1);
}

}  // namespace

// Asks CUPTI to tell of every driver call from now on. 0, or CUPTI's error code.
extern "C" int driver_calls_subscribe() {
  static CUpti_SubscriberHandle subscriber = nullptr;
  if (subscriber != nullptr) return 0;
  const CUptiResult result = cuptiSubscribe(&subscriber, &count_call, nullptr);
  if (result != CUPTI_SUCCESS) return static_cast<int>(result);
  return static_cast<int>(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API));
}

// Begins to count from zero.
extern "C" void driver_calls_start() {
  for (Entry& entry : entries()) entry.calls.store(0);
  is_counting.store(true);
}

extern "C" void driver_calls_stop() { is_counting.store(false); }

// Lines of "name count" for what was called, cut to `bytes`; the length of the whole text.
extern "C" std::size_t driver_calls_report(char* text, std::size_t bytes) {
  std::string lines;
  for (const Entry& entry : entries()) {
    const std::uint64_t calls = entry.calls.load();
    if (calls != 0) lines += std::string(entry.name.load()) + " " + std::to_string(calls) + "\n";
  }
  if (bytes != 0) {
    const std::size_t copied = lines.size() < bytes ? lines.size() : bytes - 1;
    std::memcpy(text, lines.data(), copied);
    text[copied] = '\0';
  }
  return lines.size();
}
