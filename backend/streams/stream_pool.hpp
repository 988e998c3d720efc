// Streams that nobody else uses, for the groups of this process.
//
// NOTE [Streams of one's own]
// torch has 32 streams a device and priority and hands them out in turn, so that two which should
// not wait for each other may be the same one: a send whose peer is not ready then keeps a recv
// waiting which that peer needs first. What a group puts on the device goes on streams that are
// made for groups alone, and each has one use at a time.
//
// Making streams may wait for running kernels: a process stood still, most likely for that, where
// torch made all of its pool while a kernel waited for a peer. So a group sees before its first
// kernel that torch has made them, and that some of its own are there.
//
// Device-generic, as device_streams.hpp.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "symm_mem/device/device_runtime.hpp"

namespace symm {

// A stream of `device`, whose runtime is `runtime`: one that was given back, is in no capture and
// has nothing to do, else a new one. May be called while a graph is captured. Throws
// Error(kSystem), and Error(kUnsupported) where torch takes no streams but its own.
c10::Stream take_stream(GpuRuntime& runtime, c10::Device device, bool high_priority);

// Sees that `count` streams are there to be taken. Throws as take_stream().
void reserve_streams(GpuRuntime& runtime, c10::Device device, bool high_priority,
                     std::size_t count);

// From take_stream() with the same priority. What was put on it may still run.
void give_back_stream(const c10::Stream& stream, bool high_priority) noexcept;

}  // namespace symm
