// Counters of a group that begin above 0, for tests of what they do at the end of their width.
#pragma once

#include <cstddef>

#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/launch/copy_streams.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// Sets those of a rank's `segment`, which is all 0, to `first`, as after so many calls of
// everybody. Waits for the copies. On the current device.
void set_first_counts(const DeviceLayout& layout, int world_size, const FirstCounts& first,
                      std::byte* segment, CopyStreams& copies);

}  // namespace symm
