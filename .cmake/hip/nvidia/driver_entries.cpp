// The entries of the NVIDIA driver that HIP's inline functions name, found when one is first
// called, so that the library loads where no driver is.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

namespace {

template <typename Function>
Function find(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(driver == nullptr ? nullptr : ::dlsym(driver, name));
}

// A thread of HIP has a device in whatever way it came to be, one of the driver has no context
// until the runtime gives it one.
CUresult enter_device() {
  static const auto current = find<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  if (current == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUcontext context = nullptr;
  const CUresult result = current(&context);
  if (result != CUDA_SUCCESS || context != nullptr) return result;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}

template <typename Function, typename... Arguments>
CUresult call(Function function, Arguments... arguments) {
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
template <typename Function, typename... Arguments>
CUresult call_on_device(Function function, Arguments... arguments) {
  const CUresult entered = enter_device();
  return entered == CUDA_SUCCESS ? call(function, arguments...) : entered;
}

}  // namespace

// The vendor's header renames an entry to the version of it that it declares, and so does the text.
#define SYMM_TEXT(name) #name
#define SYMM_UNPACK(...) __VA_ARGS__
#define SYMM_FORWARD(caller, name, parameters, arguments)                \
  extern "C" CUresult CUDAAPI name parameters {                          \
    static const auto function = find<decltype(&name)>(SYMM_TEXT(name)); \
    return caller(function, SYMM_UNPACK arguments);                      \
  }

// clang-format off
SYMM_FORWARD(call, cuInit, (unsigned flags), (flags))
SYMM_FORWARD(call, cuDeviceGet, (CUdevice* device, int index), (device, index))
SYMM_FORWARD(call, cuDeviceGetAttribute, (int* value, CUdevice_attribute which, CUdevice device),
             (value, which, device))
SYMM_FORWARD(call, cuDeviceGetName, (char* name, int length, CUdevice device),
             (name, length, device))
SYMM_FORWARD(call, cuDeviceGetUuid, (CUuuid* uuid, CUdevice device), (uuid, device))
SYMM_FORWARD(call_on_device, cuMemsetD8Async,
             (CUdeviceptr base, unsigned char value, size_t bytes, CUstream stream),
             (base, value, bytes, stream))
SYMM_FORWARD(call_on_device, cuMemGetAddressRange,
             (CUdeviceptr* base, size_t* bytes, CUdeviceptr address), (base, bytes, address))
SYMM_FORWARD(call_on_device, cuMemGetAllocationGranularity,
             (size_t* granularity, const CUmemAllocationProp* properties,
              CUmemAllocationGranularity_flags option), (granularity, properties, option))
SYMM_FORWARD(call_on_device, cuMemCreate,
             (CUmemGenericAllocationHandle* handle, size_t bytes,
              const CUmemAllocationProp* properties, unsigned long long flags),
             (handle, bytes, properties, flags))
SYMM_FORWARD(call_on_device, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
SYMM_FORWARD(call_on_device, cuMemRetainAllocationHandle,
             (CUmemGenericAllocationHandle* handle, void* address), (handle, address))
SYMM_FORWARD(call_on_device, cuMemGetAllocationPropertiesFromHandle,
             (CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle),
             (properties, handle))
SYMM_FORWARD(call_on_device, cuMemExportToShareableHandle,
             (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
              unsigned long long flags), (shareable, handle, type, flags))
SYMM_FORWARD(call_on_device, cuMemImportFromShareableHandle,
             (CUmemGenericAllocationHandle* handle, void* shareable,
              CUmemAllocationHandleType type), (handle, shareable, type))
SYMM_FORWARD(call_on_device, cuMemAddressReserve,
             (CUdeviceptr* base, size_t bytes, size_t alignment, CUdeviceptr wish,
              unsigned long long flags), (base, bytes, alignment, wish, flags))
SYMM_FORWARD(call_on_device, cuMemAddressFree, (CUdeviceptr base, size_t bytes), (base, bytes))
SYMM_FORWARD(call_on_device, cuMemMap,
             (CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long flags), (base, bytes, offset, handle, flags))
SYMM_FORWARD(call_on_device, cuMemUnmap, (CUdeviceptr base, size_t bytes), (base, bytes))
SYMM_FORWARD(call_on_device, cuMemSetAccess,
             (CUdeviceptr base, size_t bytes, const CUmemAccessDesc* access, size_t count),
             (base, bytes, access, count))
// clang-format on
