#include "backend/streams/stream_pool.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

struct SpareStreams {
  std::mutex mutex;
  // By device and whether their priority is high.
  std::map<std::pair<c10::DeviceIndex, bool>, std::vector<c10::Stream>> of;
};

SpareStreams& spare_streams() {
  static auto* const spare = new SpareStreams;  // groups may outlive every static
  return *spare;
}

bool is_idle(GpuRuntime& runtime, const c10::Stream& stream) {
  try {
    return runtime.capture_id(stream.native_handle()) == 0 && stream.query();
  } catch (const std::exception&) {
    return false;  // in a capture that has failed
  }
}

// As torch names a stream that it did not make: by its handle.
c10::Stream named(StreamHandle handle, c10::Device device) {
  const auto id = reinterpret_cast<c10::StreamId>(handle);
  const c10::Stream stream = c10::Stream::unpack3(id, device.index(), device.type());
  if (stream.native_handle() != handle) {
    throw Error(
        ErrorCode::kUnsupported,
        "this version of PyTorch does not know streams that it did not make by their handle");
  }
  return stream;
}

}  // namespace

c10::Stream take_stream(GpuRuntime& runtime, c10::Device device, bool high_priority) {
  const RelaxedCapture relaxed(runtime);
  {
    SpareStreams& spare = spare_streams();
    const std::lock_guard lock(spare.mutex);
    std::vector<c10::Stream>& streams = spare.of[{device.index(), high_priority}];
    const auto found = std::ranges::find_if(
        streams, [&](const c10::Stream& stream) { return is_idle(runtime, stream); });
    if (found != streams.end()) {
      const c10::Stream stream = *found;
      streams.erase(found);
      return stream;
    }
  }
  return named(runtime.make_stream(high_priority), device);
}

void reserve_streams(GpuRuntime& runtime, c10::Device device, bool high_priority,
                     std::size_t count) {
  const RelaxedCapture relaxed(runtime);
  SpareStreams& spare = spare_streams();
  const std::lock_guard lock(spare.mutex);
  std::vector<c10::Stream>& streams = spare.of[{device.index(), high_priority}];
  while (streams.size() < count) {
    streams.push_back(named(runtime.make_stream(high_priority), device));
  }
}

void give_back_stream(const c10::Stream& stream, bool high_priority) noexcept {
  try {
    SpareStreams& spare = spare_streams();
    const std::lock_guard lock(spare.mutex);
    spare.of[{stream.device_index(), high_priority}].push_back(stream);
  } catch (const std::bad_alloc&) {
    // It is not used again.
  }
}

}  // namespace symm
