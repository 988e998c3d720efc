#include "symm_mem/device/gpu_handles.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdint>

#include "kernels/core/error.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {

gpuMemHandleType gpu_handle_types(HandleKinds kinds) {
  const int posix = kinds.descriptor ? static_cast<int>(gpuMemHandlePosix) : 0;
  const int fabric = kinds.fabric ? static_cast<int>(gpuMemHandleFabric) : 0;
  return static_cast<gpuMemHandleType>(posix | fabric);
}

HandleKinds handle_kinds_of(gpuMemHandleType types) {
  const int mask = static_cast<int>(types);
  return {.descriptor = (mask & static_cast<int>(gpuMemHandlePosix)) != 0,
          .fabric = (mask & static_cast<int>(gpuMemHandleFabric)) != 0};
}

MemoryHandle export_gpu_handle(const GpuDevice& device, gpuMemHandle_t memory, HandleKind kind,
                               const std::string& what) {
  const GpuColdScope scope(device);
  const GpuDriver& driver = device.driver();
  const std::string action = "exporting " + what + " of " + device.label();
  if (kind == HandleKind::kFabric) {
    static_assert(sizeof(gpuFabricHandle) == FabricHandle::kBytes);
    FabricHandle fabric;
    driver.check(driver.mem_export(fabric.bytes.data(), memory, gpuMemHandleFabric, 0),
                 action + " by a fabric handle");
    return fabric;
  }
  int fd = -1;
  driver.check(driver.mem_export(&fd, memory, gpuMemHandlePosix, 0), action);
  FileDescriptor exported(fd);
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw_system_error(action, errno);
  return exported;
}

gpuMemHandle_t import_gpu_handle(const GpuDevice& device, const MemoryHandle& handle) {
  const GpuColdScope scope(device);
  const GpuDriver& driver = device.driver();
  gpuMemHandle_t imported{};
  gpuResult_t result{};
  if (const auto* const fabric = std::get_if<FabricHandle>(&handle)) {
    FabricHandle copy = *fabric;  // the driver takes a pointer to what it might change
    result = driver.mem_import(&imported, copy.bytes.data(), gpuMemHandleFabric);
  } else {
    const int fd = std::get<FileDescriptor>(handle).get();
    if (fd < 0) {
      throw Error(ErrorCode::kSecurity,
                  "refused a peer's memory handle: it is not an open descriptor");
    }
    const auto number = static_cast<std::uintptr_t>(fd);
    result = driver.mem_import(&imported, reinterpret_cast<void*>(number), gpuMemHandlePosix);
  }
  if (result == gpuDriverSuccess) return imported;
  const bool forged = result == gpuDriverInvalidValue || result == gpuDriverInvalidHandle;
  throw Error(forged ? ErrorCode::kSecurity : ErrorCode::kSystem,
              "refused a peer's memory handle: ", device.label(),
              " cannot import it: ", driver.describe(result));
}

}  // namespace symm
