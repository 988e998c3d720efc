// Which shares of an all_to_all go by lanes. Host, free of vendor headers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/launch/wire_route.hpp"

namespace symm {

class LargeShares {
 public:
  LargeShares(int rank, int world_size)
      : rank_(rank),
        launch_{.send = std::vector<RoutePiece>(static_cast<std::size_t>(world_size)),
                .take = std::vector<RoutePiece>(static_cast<std::size_t>(world_size))} {}

  // Divides the messages of an all_to_all, as GroupKernels::transfer() has them. True where some go
  // by lanes: those are launch(), and others() the rest. What a pair of ranks exchanges decides, by
  // its size. Local; warm calls allocate nothing.
  bool divide(std::span<const TransferOp> ops) {
    const auto self = static_cast<std::size_t>(rank_);
    std::fill(launch_.send.begin(), launch_.send.end(), RoutePiece{});
    std::fill(launch_.take.begin(), launch_.take.end(), RoutePiece{});
    launch_.sends[0] = launch_.hears[0] = 0;
    others_.clear();
    for (const TransferOp& op : ops) {
      if (!op.is_send) dtype_ = op.dtype;
      if (op.bytes <= kMostShareByMessages) {
        others_.push_back(op);
        continue;
      }
      const auto peer = static_cast<std::size_t>(op.peer);
      (op.is_send ? launch_.send : launch_.take)[peer] = {static_cast<std::byte*>(op.data),
                                                          op.bytes};
      if (peer != self) (op.is_send ? launch_.sends : launch_.hears)[0] |= 1ull << op.peer;
    }
    launch_.copies_own = launch_.send[self].data != launch_.take[self].data;
    return others_.size() < ops.size();
  }

  // Valid until the next divide().
  const WireLaunch& launch() const { return launch_; }
  std::span<const TransferOp> others() const { return others_; }
  Dtype dtype() const { return dtype_; }

 private:
  const int rank_;
  WireLaunch launch_;
  std::vector<TransferOp> others_;
  Dtype dtype_ = Dtype::kUInt8;  // of what is received
};

}  // namespace symm
