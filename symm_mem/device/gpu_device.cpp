#include "symm_mem/device/gpu_device.hpp"

#include <array>
#include <cstring>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

std::string device_text(DeviceKind kind, int index) {
  return text_of(device_kind_name(kind), ":", index);
}

template <typename... Why>
[[noreturn]] void refuse(DeviceKind kind, int index, const Why&... why) {
  throw Error(ErrorCode::kUnsupported, "symm cannot use ", device_text(kind, index), ": ", why...);
}

GpuUuid uuid_of(const GpuDriver& driver, gpuDevice_t device, const std::string& what) {
  gpuUuid_t uuid{};
  driver.check(driver.device_get_uuid(&uuid, device), what);
  GpuUuid bytes;
  static_assert(sizeof(uuid) == sizeof(bytes));
  std::memcpy(bytes.data(), &uuid, sizeof(uuid));
  return bytes;
}

}  // namespace

GpuDevice::GpuDevice(DeviceKind kind, int index) : driver_(gpu_driver()) {
  const int count = gpu_count(driver_);
  if (index < 0 || index >= count) {
    refuse(kind, index, "there is no such GPU; this process sees ", count);
  }
  const std::string what = "looking at " + device_text(kind, index);
  driver_.check(driver_.device_get(&handle_, index), what);
  std::array<char, 256> name{};
  driver_.check(driver_.device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle_),
                what);
  identity_.uuid = uuid_of(driver_, handle_, what);
  identity_.name = name.data();
  identity_.index = index;
  identity_.multiprocessors = attribute(gpuAttributeMultiprocessors);
  identity_.architecture = 10 * attribute(gpuAttributeMajor) + attribute(gpuAttributeMinor);
  label_ =
      text_of(identity_.name, " (", device_text(kind, index), ", ", identity_.uuid_text(), ")");
  if (attribute(gpuAttributeVmm) == 0) {
    refuse(kind, index, identity_.name, " has no virtual memory management");
  }
  if (const std::string why = gpu_memory_problem(handle_); !why.empty()) {
    refuse(kind, index, identity_.name, ": ", why);
  }
  if (!has_descriptors() && !has_fabric_handles()) {
    refuse(kind, index, identity_.name,
           " can share memory neither by file descriptors nor by fabric handles");
  }
  driver_.check(driver_.primary_context_retain(&context_, handle_),
                "making the context of " + label_);
}

int GpuDevice::attribute(gpuDeviceAttribute which) const {
  int value = 0;
  driver_.check(driver_.device_get_attribute(&value, which, handle_),
                text_of("asking GPU ", identity_.index, " what it can do"));
  return value;
}

std::vector<GpuUuid> GpuDevice::gpus_with_lines() const {
  if (!kGpuHasLines) return {};
  std::vector<GpuUuid> gpus = {identity_.uuid};
  const char* const what = "asking for the links between GPUs";
  const int count = gpu_count(driver_);
  for (int index = 0; index < count; ++index) {
    gpuDevice_t device{};
    driver_.check(driver_.device_get(&device, index), what);
    const GpuUuid other = uuid_of(driver_, device, what);
    if (other == identity_.uuid) continue;
    int atomics = 0;
    driver_.check(driver_.device_get_link(&atomics, gpuLinkHasAtomics, handle_, device), what);
    if (atomics != 0) gpus.push_back(other);
  }
  return gpus;
}

GpuScope::GpuScope(const GpuDevice& device) : driver_(device.driver()) {
  if (!device.usable()) {
    throw Error(ErrorCode::kUnsupported, "a forked child cannot use ", device.label(),
                " of its parent; start processes that use a GPU by spawn");
  }
  gpuContext_t current = nullptr;
  driver_.check(driver_.context_get_current(&current), "asking for the current context");
  if (current == device.context()) return;
  driver_.check(driver_.context_push(device.context()),
                "entering the context of " + device.label());
  pushed_ = true;
}

GpuScope::~GpuScope() {
  gpuContext_t popped = nullptr;
  if (pushed_) static_cast<void>(driver_.context_pop(&popped));
}

GpuColdScope::GpuColdScope(const GpuDevice& device) : scope_(device), driver_(device.driver()) {
  driver_.check(driver_.thread_exchange_capture_mode(&mode_), "working beside a capture");
}

GpuColdScope::~GpuColdScope() { static_cast<void>(driver_.thread_exchange_capture_mode(&mode_)); }

}  // namespace symm
