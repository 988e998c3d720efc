// GPU memory as another library makes it: one reserved range of addresses into which several
// handles are mapped, side by side.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The vendor's headers rename an entry to the version of it that they declare.
#define SYMM_ENTRY_NAME(entry) #entry
#define SYMM_RENAMED(entry) SYMM_ENTRY_NAME(entry)
#define SYMM_DRIVER(entry, ...) call<decltype(&entry)>(SYMM_RENAMED(entry), __VA_ARGS__)

namespace symm::test {

class ForeignRange {
 public:
  // `library`: the driver's, as dlopen() gives it. One chunk for each of `sizes`, which must be
  // multiples of what the device maps. `kinds`: of CUmemAllocationHandleType.
  ForeignRange(void* library, int device, std::vector<std::size_t> sizes,
               int kinds = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      : library_(library), device_(device), kinds_(kinds), sizes_(std::move(sizes)) {
    handles_.resize(sizes_.size());
    in_context([&] {
      SYMM_DRIVER(cuMemAddressReserve, &base_, bytes(), std::size_t{0}, CUdeviceptr{0}, 0ull);
      for (std::size_t chunk = 0; chunk < sizes_.size(); ++chunk) map(chunk);
    });
  }
  ~ForeignRange() {
    in_context([&] {
      for (std::size_t chunk = 0; chunk < sizes_.size(); ++chunk) {
        if (handles_[chunk] != 0) unmap(chunk);
      }
      SYMM_DRIVER(cuMemAddressFree, base_, bytes());
    });
  }
  ForeignRange(const ForeignRange&) = delete;
  ForeignRange& operator=(const ForeignRange&) = delete;

  std::byte* base() const { return reinterpret_cast<std::byte*>(base_); }
  std::size_t bytes() const {
    return std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
  }

  // Puts new memory at the addresses of `chunk`, as after memory ran short and came back.
  void exchange(std::size_t chunk) {
    in_context([&] {
      unmap(chunk);
      map(chunk);
    });
  }
  // Leaves a hole.
  void take_away(std::size_t chunk) {
    in_context([&] { unmap(chunk); });
  }

 private:
  template <typename Function, typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("no ") + name);
    const CUresult result = function(arguments...);
    if (result != CUDA_SUCCESS) {
      throw std::runtime_error(std::string(name) + ": error " + std::to_string(result));
    }
  }

  template <typename Body>
  void in_context(Body&& body) const {
    CUdevice device{};
    CUcontext context{};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SYMM_DRIVER(cuDeviceGet, &device, device_);
    SYMM_DRIVER(cuDevicePrimaryCtxRetain, &context, device);
    SYMM_DRIVER(cuCtxPushCurrent, context);
    SYMM_DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
    body();
    SYMM_DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
    SYMM_DRIVER(cuCtxPopCurrent, &context);
  }

  CUdeviceptr place(std::size_t chunk) const {
    return std::accumulate(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(chunk),
                           base_);
  }
  void map(std::size_t chunk) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(kinds_);
    const std::size_t size = sizes_[chunk];
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    SYMM_DRIVER(cuMemCreate, &handles_[chunk], size, &properties, 0ull);
    SYMM_DRIVER(cuMemMap, place(chunk), size, std::size_t{0}, handles_[chunk], 0ull);
    SYMM_DRIVER(cuMemSetAccess, place(chunk), size, &access, std::size_t{1});
  }
  void unmap(std::size_t chunk) {
    SYMM_DRIVER(cuMemUnmap, place(chunk), sizes_[chunk]);
    SYMM_DRIVER(cuMemRelease, std::exchange(handles_[chunk], 0));
  }

  void* library_;
  int device_;
  int kinds_;
  std::vector<std::size_t> sizes_;
  std::vector<CUmemGenericAllocationHandle> handles_;  // 0 for a hole
  CUdeviceptr base_{};
};

}  // namespace symm::test

#undef SYMM_DRIVER
#undef SYMM_RENAMED
#undef SYMM_ENTRY_NAME
