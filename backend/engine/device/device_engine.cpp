#include "backend/engine/device/device_engine.hpp"

namespace symm {

std::string device_name(DeviceId device) {
  return std::string(device_kind_name(device.kind)) + ":" + std::to_string(device.index);
}

}  // namespace symm
