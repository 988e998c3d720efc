#include "kernels/gpu/launch/copy_streams.hpp"

#include <algorithm>

#include "kernels/algorithms/executor.hpp"
#include "kernels/gpu/vendor/gpu_check.hpp"

namespace symm {

std::vector<DeviceCopy> copies_of(const CollectiveArgs& args, int rank,
                                  std::span<std::byte* const> outputs) {
  const auto world = static_cast<int>(outputs.size());
  const std::size_t size = dtype_bytes(args.dtype);
  std::vector<DeviceCopy> copies;
  if (args.kind == CollectiveKind::kBroadcast && rank != args.root) return copies;
  std::size_t before_mine = 0;
  if (args.kind == CollectiveKind::kAllGather) {
    for (int r = 0; r < rank; ++r) {
      before_mine += args.output_parts[static_cast<std::size_t>(r)].count * size;
    }
  }
  for (int i = 1; i <= world; ++i) {
    const int peer = nth_peer(rank, i, world);
    const auto index = static_cast<std::size_t>(peer);
    DeviceCopy copy{};
    if (args.kind == CollectiveKind::kAllToAll) {
      const Part& part = args.input_parts[index];
      const std::uint64_t bytes = part.count * size;
      copy = {part.data, outputs[index] + static_cast<std::size_t>(rank) * bytes, bytes};
    } else {
      copy = {args.input, outputs[index] + before_mine, args.count * size};
    }
    if (copy.bytes > 0 && copy.destination != copy.source) copies.push_back(copy);
  }
  return copies;
}

CopyStreams::CopyStreams(int peers) {
  const int count = std::max(peers, 1);
  for (int i = 0; i < count; ++i) {
    gpuStream_t stream = nullptr;
    check_gpu(gpuStreamCreateNonBlocking(&stream), "making a stream");
    streams_.push_back(stream);
    gpuEvent_t event = nullptr;
    check_gpu(gpuEventCreateUntimed(&event), "making an event");
    joined_.push_back(event);
  }
  check_gpu(gpuEventCreateUntimed(&forked_), "making an event");
}

CopyStreams::~CopyStreams() {
  for (gpuStream_t stream : streams_) (void)gpuStreamDestroy(stream);
  for (gpuEvent_t event : joined_) (void)gpuEventDestroy(event);
  if (forked_ != nullptr) (void)gpuEventDestroy(forked_);
}

void CopyStreams::run(const std::vector<DeviceCopy>& copies, gpuStream_t stream) {
  check_gpu(gpuEventRecord(forked_, stream), "forking the copies");
  for (std::size_t i = 0; i < copies.size(); ++i) {
    // The last copy, of the own share, needs no stream of its own.
    const gpuStream_t target = i < streams_.size() ? streams_[i] : stream;
    const DeviceCopy& copy = copies[i];
    if (target != stream) check_gpu(gpuStreamWaitEvent(target, forked_), "forking the copies");
    check_gpu(
        gpuMemcpyAsync(copy.destination, copy.source, copy.bytes, gpuMemcpyDeviceToDevice, target),
        "copying");
    if (target != stream) check_gpu(gpuEventRecord(joined_[i], target), "joining the copies");
  }
  for (std::size_t i = 0; i < std::min(copies.size(), streams_.size()); ++i) {
    check_gpu(gpuStreamWaitEvent(stream, joined_[i]), "joining the copies");
  }
}

void CopyStreams::copy_to_device(void* destination, const void* source, std::size_t bytes) {
  copy_and_wait(destination, source, bytes, gpuMemcpyHostToDevice);
}

void CopyStreams::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  copy_and_wait(destination, source, bytes, gpuMemcpyDeviceToHost);
}

void CopyStreams::copy_and_wait(void* destination, const void* source, std::size_t bytes,
                                gpuMemcpyKind kind) {
  const char* const what =
      kind == gpuMemcpyHostToDevice ? "copying to the device" : "copying from the device";
  check_gpu(gpuMemcpyAsync(destination, source, bytes, kind, streams_[0]), what);
  check_gpu(gpuStreamSynchronize(streams_[0]), what);
}

}  // namespace symm
