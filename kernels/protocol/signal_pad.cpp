#include "kernels/protocol/signal_pad.hpp"

#include <string>

#include "kernels/core/error.hpp"

namespace symm {

void check_signal_channel(const char* operation, std::size_t pad_bytes, int world_size,
                          int channel) {
  if (has_signal_channel(pad_bytes, world_size, channel)) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(operation) + ": channel must be at least 0 and below " +
                  std::to_string(signal_channels(pad_bytes, world_size)) +
                  ", the number of channels that a signal pad of " + std::to_string(pad_bytes) +
                  " bytes has for " + std::to_string(world_size) + " ranks; got " +
                  std::to_string(channel));
}

void check_signal_rank(const char* operation, int world_size, int rank) {
  if (rank >= 0 && rank < world_size) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(operation) + ": rank must be at least 0 and below " +
                  std::to_string(world_size) + ", the size of the group; got " +
                  std::to_string(rank));
}

}  // namespace symm
