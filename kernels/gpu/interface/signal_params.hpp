// The parameters of a signal kernel, and the page of host memory to which it reports a failure.
//
// Host and device; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "kernels/protocol/row_exchange.hpp"
#include "kernels/protocol/signal_pad.hpp"

namespace symm {

// What the host knows a kernel by; row exchanges are barriers with work between them.
enum class SignalOperation : std::uint32_t { kBarrier, kPutSignal, kWaitSignal, kExchangeRows };

// In this rank's host memory, mapped by its GPU. The host writes `gone` and `lost`, the GPU the
// rest.
struct alignas(4096) SignalPage {
  // Bit r: what rank r has not signalled yet it never will, so that waits for it end.
  std::uint64_t gone;
  // 1: a rank that died or left is why; 0: the host ends the waits of its own accord. Written
  // before `gone`.
  std::uint32_t lost;

  struct alignas(kCacheLine) Report {
    std::uint32_t fault;  // kAborted, kTimeout, kPeerGaveUp or kWrongSplits; written last
    std::int32_t peer;    // group rank that was waited for, or that withdrew its signal
    std::int32_t channel;
    SignalOperation operation;
    std::uint32_t putting;  // 1: the signal before was not taken; 0: no signal came
    std::uint32_t reserved;
    std::uint64_t timeout_ns;
    RowExchangeShape shape;  // this and the next: of kWrongSplits
    SplitFault split;
  } report;
};

// In this rank's device memory; zero at the start.
struct alignas(kCacheLine) SignalState {
  std::uint32_t dead;  // a kernel gave up: later ones end at once, replays of graphs too
};

// The parameters of a launch. Everything is passed by value, so that a captured graph needs nothing
// but the memory that the pointers name.
struct SignalParams {
  SignalOperation operation;
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t peer;  // of put and wait
  std::int32_t channel;
  // Failed polls between two tests of the ranks that are gone and the clock; a power of two.
  std::uint32_t poll_period;
  std::uint32_t traps;       // 1: NOTE [Traps] in signal_kernels.hpp
  std::uint64_t timeout_ns;  // 0: no limit
  SignalPage* page;          // device address
  SignalState* state;
  SignalSlot* pads[kMaxDeviceRanks];  // by rank
};

}  // namespace symm
