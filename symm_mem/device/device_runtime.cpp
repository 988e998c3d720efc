#include "symm_mem/device/device_runtime.hpp"

#include "kernels/core/error.hpp"

namespace symm {

std::string_view device_kind_name(DeviceKind kind) {
  constexpr std::array<std::string_view, 3> kNames{"cpu", "cuda", "hip"};  // by DeviceKind
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string GpuIdentity::uuid_text() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

void DeviceRuntime::check_place(const PhysicalMemory& memory, const AddressRange& range,
                                std::size_t offset) const {
  const std::size_t room = range.bytes();
  if (offset % granularity() == 0 && offset <= room && memory.bytes() <= room - offset) return;
  throw Error(ErrorCode::kInvalidArgument, "map_at: offset ", offset, " must be a multiple of ",
              granularity(), " that leaves room for ", memory.bytes(), " bytes in a range of ",
              room);
}

}  // namespace symm
