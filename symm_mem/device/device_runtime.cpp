#include "symm_mem/device/device_runtime.hpp"

namespace symm {

std::string_view device_kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kHost:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kHip:
      return "hip";
  }
  return "unknown";
}

}  // namespace symm
