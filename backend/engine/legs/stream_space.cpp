#include "backend/engine/legs/stream_space.hpp"

#include <utility>

namespace symm {

StreamSpace::~StreamSpace() {
  if (memory_.empty()) return;
  try {
    const RelaxedCapture relaxed(local_.runtime());
    local_.runtime().synchronize();
  } catch (const Error&) {
    [[maybe_unused]] const auto* kept = new std::vector(std::move(memory_));
  }
}

std::span<std::byte> StreamSpace::allocate(std::size_t bytes) {
  GpuRuntime& runtime = local_.runtime();
  memory_.push_back(runtime.map(runtime.allocate(bytes)));
  const std::span memory(memory_.back()->base(), memory_.back()->bytes());
  link_.add_memory(memory);
  return memory;
}

std::size_t StreamSpace::allocated_bytes() const {
  std::size_t bytes = 0;
  for (const auto& mapping : memory_) bytes += mapping->bytes();
  return bytes;
}

void StreamSpace::check(CollectiveKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  if (!to_.captured) {
    connected_.set(number);
    return;
  }
  const std::string call(collective_name(kind));
  if (!link_.can_be_captured()) {
    throw Error(ErrorCode::kUnsupported, call, " over several hosts with ", link_.name(),
                " between them waits for the device and cannot be captured into a graph");
  }
  if (connected_.test(number)) return;
  throw Error(
      ErrorCode::kUnsupported, call,
      " over several hosts has not been called by this group yet; call once before capture");
}

void StreamSpace::run_local(const CollectiveArgs& args, std::chrono::milliseconds timeout) {
  DeviceLaunch to = to_;
  to.timeout = timeout;
  local_.launch(args, to);
}

void StreamSpace::fold(const FoldCall& call) { local_.fold(call, to_.stream); }

void StreamSpace::copy(void* to, const void* from, std::size_t bytes) {
  local_.copy(to, from, bytes, to_.stream);
}

}  // namespace symm
