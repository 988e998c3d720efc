// How a device carries out a call: what DeviceGroup::choose() decides.
#pragma once

#include <optional>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/group/call_record.hpp"
#include "backend/engine/group/settings.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

struct DeviceGroup::Choice {
  Plan plan{};
  std::optional<Found> symmetric_input;   // multimem reads here, of every rank at once
  std::optional<Found> symmetric_output;  // copy engines or multimem write here

  // What the call's record names.
  const std::optional<Found>& location() const {
    return symmetric_output ? symmetric_output : symmetric_input;
  }
};

}  // namespace symm
