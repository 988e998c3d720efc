// Tensors, streams and events of torch on the fake GPUs of fake_gpu.hpp.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "test/support/fake_gpu.hpp"

namespace symm::test {

// torch's side of the fake GPUs: streams that are numbers, events that all have passed or none.
// What a thread has its streams record and wait for can be written down.
class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    current_ = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_}; }
  void setDevice(c10::Device device) const override { current_ = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_ = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream(device, 7);
  }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(getDevice()); }
  // A stream that torch did not make is named by its handle.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == 1 ? FakeGpu::plain_stream() : reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream&) const override { return streams_are_idle; }
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }
  // An event is the stream that it was recorded on, and its number among those of the thread.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static thread_local std::intptr_t number = 0;
    *event = reinterpret_cast<void*>(++number * kStreams + stream.id());
    if (notes != nullptr) notes->push_back("record " + name_of(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (notes == nullptr) return;
    notes->push_back(std::to_string(stream.id()) + " behind " + name_of(event));
  }
  bool queryEvent(void*) const override {
    if (queries_before_all_pass > 0 && queries_before_all_pass-- > 0) return false;
    return events_have_passed;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}

  static inline std::atomic<bool> events_have_passed{true};
  static inline std::atomic<bool> streams_are_idle{true};
  static inline std::atomic<int> queries_before_all_pass{0};
  static inline thread_local c10::StreamId current_stream = 1;
  static inline thread_local std::vector<std::string>* notes = nullptr;

 private:
  static constexpr std::intptr_t kStreams = 1'000'000;

  // "12.3": the third of the thread, on stream 12.
  static std::string name_of(void* event) {
    const auto value = reinterpret_cast<std::intptr_t>(event);
    return std::to_string(value % kStreams) + "." + std::to_string(value / kStreams);
  }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }

  static inline thread_local c10::DeviceIndex current_ = 0;
};

// A tensor that says it is on a GPU; nothing looks at its elements.
inline at::Tensor gpu_tensor(std::vector<float>& elements, int index) {
  const auto device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  c10::Storage storage(c10::Storage::use_byte_size_t{}, elements.size() * sizeof(float),
                       c10::DataPtr(elements.data(), device), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(elements.size())});
  return tensor;
}

// False where torch has GPUs of its own.
inline bool use_fake_gpus() {
  static const bool is_free = !c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  if (!is_free) return false;
  static const FakeGuard guard;
  c10::impl::registerDeviceGuard(c10::kCUDA, &guard);
  return true;
}

}  // namespace symm::test
