// Streams, events and memory of the emulated GPU: a stream is a thread of the host, and each block
// of a kernel that runs is another. Memory is the host's.
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <queue>
#include <set>
#include <thread>
#include <vector>

#include "test/gpu_emulated/cuda_runtime.h"
#include "test/gpu_emulated/emulated_block.hpp"

using Clock = std::chrono::steady_clock;

struct EmulatedEvent {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;  // how often it was put on a stream
  std::uint64_t reached = 0;
  Clock::time_point time;
};

struct EmulatedStream {
 public:
  EmulatedStream() : worker_([this] { work(); }) {}
  ~EmulatedStream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  void put(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push(std::move(task));
    }
    changed_.notify_all();
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return tasks_.empty() && !busy_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty() || ends_; });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop();
      busy_ = true;
      lock.unlock();
      task();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  std::thread worker_;
};

namespace {

std::mutex all_mutex;
std::set<EmulatedStream*> all_streams;

// The stream, or the one of those who name none.
EmulatedStream& stream_of(cudaStream_t stream) {
  static EmulatedStream null_stream;
  return stream != nullptr ? *stream : null_stream;
}

cudaError_t put(cudaStream_t stream, std::function<void()> task) {
  stream_of(stream).put(std::move(task));
  return cudaSuccess;
}

}  // namespace

cudaError_t emulated_grid(dim3 blocks, dim3 threads, cudaStream_t stream,
                          std::function<void()> body) {
  return put(stream, [blocks, threads, body = std::move(body)] {
    std::vector<std::jthread> running;
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        running.emplace_back(
            [&, x, y] { symm::test::run_block(dim3(x, y, 0), blocks, threads, body); });
      }
    }
  });
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "not supported by the emulated GPU";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<EmulatedStream*> streams;
  {
    const std::lock_guard lock(all_mutex);
    streams.assign(all_streams.begin(), all_streams.end());
  }
  stream_of(nullptr).wait();
  for (EmulatedStream* stream : streams) stream->wait();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  (void)cudaDeviceSynchronize();
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return put(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  (void)cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return put(stream, [=] { std::memset(memory, value, bytes); });
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  (void)cudaMemsetAsync(memory, value, bytes, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 34;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new EmulatedStream();
  const std::lock_guard lock(all_mutex);
  all_streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(all_mutex);
    all_streams.erase(stream);
  }
  stream->wait();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).wait();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::unique_lock lock(event->mutex);
  const std::uint64_t target = event->recorded;
  lock.unlock();
  return put(stream, [=] {
    std::unique_lock waiting(event->mutex);
    event->changed.wait(waiting, [=] { return event->reached >= target; });
  });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  return put(stream, [=] {
    {
      const std::lock_guard lock(event->mutex);
      event->reached = number;
      event->time = Clock::now();
    }
    event->changed.notify_all();
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaErrorNotSupported; }
