// A stand-in for libcuda.so.1: GPUs whose memory is host memory, so that the memory half of the
// device library runs on machines without a GPU. It is stricter than the driver in one thing: what
// touches memory must be called in a device's context and with captures relaxed.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "test/support/fake_gpu_driver.hpp"
#include "test/support/fake_gpu_mappings.hpp"

extern "C" {
symm::test::FakeGpuDriverState fake_gpu_driver_state;
}

namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;

symm::test::FakeGpuDriverState& state = fake_gpu_driver_state;
thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Ranks that are threads call at once.
void add(int& counter, int by) { std::atomic_ref<int>(counter).fetch_add(by); }

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(0x1000 + device); }
void note_place() {
  add(state.calls_elsewhere,
      contexts.empty() || capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED ? 1 : 0);
}
int descriptor_of(CUmemGenericAllocationHandle handle) { return static_cast<int>(handle) - 1; }
int current_device() {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back())) - 0x1000;
}

// What a handle refers to, whoever holds it: memory, or a multicast object, which is some memory of
// its own here.
struct Object {
  unsigned long long kinds = 0;  // of handles that it may be exported as
  int device = -1;               // of memory
  bool multicast = false;
  std::size_t bytes = 0;
  unsigned devices = 0;  // that a multicast object waits for
  std::set<int> added;
  std::set<int> bound;
};

std::mutex objects_mutex;

// By inode, which every duplicate of a descriptor shares.
Object* object_of(int fd) {
  static std::map<ino_t, Object> objects;
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_size == 0) return nullptr;
  return &objects[status.st_ino];
}

bool fails(symm::test::FakeMulticastStep step) {
  return state.fail_step == step && state.fail_device == current_device();
}
bool fails(symm::test::FakeMulticastStep step, int fd) {
  const std::lock_guard<std::mutex> lock(objects_mutex);
  const Object* const object = object_of(fd);
  return object != nullptr && object->multicast && fails(step);
}

// Never destroyed: a mapping may outlive every static of the test.
symm::test::FakeGpuMappings& mappings() {
  static auto* const all = new symm::test::FakeGpuMappings;
  return *all;
}

CUmemGenericAllocationHandle handle_of(int fd) {
  return static_cast<CUmemGenericAllocationHandle>(fd) + 1;
}

CUresult make(CUmemGenericAllocationHandle* handle, std::size_t bytes, const Object& what) {
  const int fd = ::memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::vector<char> dirt(bytes, '\x5a');
  if (::pwrite(fd, dirt.data(), bytes, 0) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(objects_mutex);
  *object_of(fd) = what;
  mappings().hold(fd);
  *handle = handle_of(fd);
  add(state.handles, 1);
  return CUDA_SUCCESS;
}

// A fabric handle holds the number of a descriptor and a mark.
constexpr unsigned char kFabricMark = 0x5f;

// Where a multicast object is mapped, for granting access.
std::set<CUdeviceptr> multicast_places;

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) {
  *version = state.version;
  return CUDA_SUCCESS;
}
CUresult cuInit(unsigned) { return state.device_count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** text) {
  *text = "FAKE_ERROR";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = state.device_count;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = state.vmm_supported;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      *value = state.fabric_offered;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = state.posix_offered;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
      *value = static_cast<int>(state.multicast_devices >> device & 1);
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = (state.old_devices >> device & 1) != 0 ? 8 : 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return CUDA_SUCCESS;
  }
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %c", 'A' + device);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(16 * device + i);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute which, CUdevice source,
                                 CUdevice destination) {
  const bool linked =
      ((state.unlinked_devices >> source | state.unlinked_devices >> destination) & 1) == 0;
  *value = which == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED && linked ? 1 : 0;
  return source == destination ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  add(state.retained, 1);
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  add(state.device_waits, 1);
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  *stream = reinterpret_cast<CUstream>(0x5);
  return flags == CU_STREAM_NON_BLOCKING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamSynchronize(CUstream stream) {
  return stream == reinterpret_cast<CUstream>(0x5) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
  note_place();
  if (stream != reinterpret_cast<CUstream>(0x5)) return CUDA_ERROR_INVALID_HANDLE;
  std::memset(reinterpret_cast<void*>(at), value, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* free, size_t* total) {
  *free = state.free_bytes;
  *total = std::size_t{1} << 30;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = kGranule;
  return CUDA_SUCCESS;
}

// New memory is not zero, as memory of a driver need not be.
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  note_place();
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    add(state.fabric_tries, 1);
    if (state.fabric_permitted == 0) return CUDA_ERROR_NOT_PERMITTED;
  }
  if (bytes > state.free_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Object memory;
  memory.kinds = properties->requestedHandleTypes;
  memory.device = properties->location.id;
  memory.bytes = bytes;
  return make(handle, bytes, memory);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  add(state.handles, -1);
  return mappings().let_go(descriptor_of(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* at) {
  note_place();
  const auto found = mappings().find(reinterpret_cast<std::uintptr_t>(at));
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  mappings().hold(found->fd);
  *handle = handle_of(found->fd);
  add(state.handles, 1);
  return CUDA_SUCCESS;
}
// As a driver that knows the reservation alone would answer, where the test asks for that.
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
  note_place();
  const auto found = mappings().find(at);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *base = found->base;
  *bytes = state.ranges_whole != 0 ? 2 * found->bytes : found->bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  note_place();
  const std::lock_guard<std::mutex> lock(objects_mutex);
  const Object* const object = object_of(descriptor_of(handle));
  if (object == nullptr || object->multicast) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = object->device;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(object->kinds);
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  const int own = descriptor_of(handle);
  if (fails(symm::test::FakeMulticastStep::kExport, own)) return CUDA_ERROR_NOT_SUPPORTED;
  {
    const std::lock_guard<std::mutex> lock(objects_mutex);
    if ((object_of(own)->kinds & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    auto* const bytes = static_cast<unsigned char*>(shared);
    std::memset(bytes, kFabricMark, 64);
    std::memcpy(bytes, &own, sizeof(own));
    return CUDA_SUCCESS;
  }
  const int fd = ::dup(own);
  std::memcpy(shared, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                        CUmemAllocationHandleType type) {
  int theirs = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    const auto* const bytes = static_cast<const unsigned char*>(shared);
    if (bytes[63] != kFabricMark) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&theirs, bytes, sizeof(theirs));
  }
  if (fails(symm::test::FakeMulticastStep::kImport, theirs)) return CUDA_ERROR_NOT_SUPPORTED;
  add(type == CU_MEM_HANDLE_TYPE_FABRIC ? state.fabric_imports : state.posix_imports, 1);
  const int fd = ::dup(theirs);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_size == 0) {
    if (fd >= 0) ::close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  mappings().hold(fd);
  *handle = handle_of(fd);
  add(state.handles, 1);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* base, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  note_place();
  void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = reinterpret_cast<CUdeviceptr>(at);
  add(state.ranges, 1);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  add(state.ranges, -1);
  ::munmap(reinterpret_cast<void*>(base), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  note_place();
  if (fails(symm::test::FakeMulticastStep::kMap, descriptor_of(handle))) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct stat status {};
  ::fstat(descriptor_of(handle), &status);
  if (static_cast<std::size_t>(status.st_size) != bytes) return CUDA_ERROR_INVALID_VALUE;
  void* const mapped = ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                              descriptor_of(handle), 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  mappings().map(at, bytes, descriptor_of(handle));
  const std::lock_guard<std::mutex> lock(objects_mutex);
  if (object_of(descriptor_of(handle))->multicast) multicast_places.insert(at);
  add(state.mappings, 1);
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  add(state.mappings, -1);
  mappings().unmap(at);
  const std::lock_guard<std::mutex> lock(objects_mutex);
  multicast_places.erase(at);
  ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
         0);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (state.fail_access != 0) return CUDA_ERROR_NOT_SUPPORTED;
  {
    const std::lock_guard<std::mutex> lock(objects_mutex);
    if (multicast_places.contains(at) && fails(symm::test::FakeMulticastStep::kAccess)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      contexts.back() != context_of(access->location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE);
  return CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t* bytes, const CUmulticastObjectProp*,
                                   CUmulticastGranularity_flags) {
  note_place();
  add(state.multicast_calls, 1);
  if (fails(symm::test::FakeMulticastStep::kGranularity)) return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = state.multicast_granule;
  return CUDA_SUCCESS;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle,
                           const CUmulticastObjectProp* properties) {
  note_place();
  add(state.multicast_calls, 1);
  if (fails(symm::test::FakeMulticastStep::kCreate)) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (properties->size % state.multicast_granule != 0 || properties->numDevices < 2) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Object object;
  object.kinds = properties->handleTypes;
  object.multicast = true;
  object.bytes = properties->size;
  object.devices = properties->numDevices;
  add(state.multicast_creates, 1);
  return make(handle, properties->size, object);
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  note_place();
  add(state.multicast_calls, 1);
  if (fails(symm::test::FakeMulticastStep::kAddDevice)) return CUDA_ERROR_SYSTEM_NOT_READY;
  const std::lock_guard<std::mutex> lock(objects_mutex);
  Object& object = *object_of(descriptor_of(handle));
  if (!object.multicast || object.added.size() >= object.devices ||
      !object.added.insert(device).second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
// Where the driver would wait for devices that are missing, this one says so.
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                            unsigned long long) {
  note_place();
  add(state.multicast_calls, 1);
  if (fails(symm::test::FakeMulticastStep::kBind)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(objects_mutex);
  Object& object = *object_of(descriptor_of(handle));
  const Object& bound = *object_of(descriptor_of(memory));
  if (object.added.size() != object.devices) {
    add(state.multicast_early, 1);
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (at != 0 || offset != 0 || bytes != object.bytes || bytes != bound.bytes ||
      bytes % state.multicast_granule != 0 || !object.added.contains(bound.device) ||
      !object.bound.insert(bound.device).second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  add(state.multicast_bindings, 1);
  return CUDA_SUCCESS;
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                           size_t bytes) {
  note_place();
  add(state.multicast_calls, 1);
  const std::lock_guard<std::mutex> lock(objects_mutex);
  Object& object = *object_of(descriptor_of(handle));
  if (at != 0 || bytes != object.bytes || object.bound.erase(device) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  add(state.multicast_bindings, -1);
  return CUDA_SUCCESS;
}

}  // extern "C"
