// What a program may choose when it makes a process group.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace symm {

// Copyable; a group copies its options when it is made, so later changes do not reach it. Every
// setter throws a c10::ValueError that names the option, what is expected and what came, and then
// changes nothing.
class ProcessGroupSymmOptions final : public c10d::Backend::Options {
 public:
  static constexpr std::size_t kDefaultWorkspaceBytes = std::size_t{8} << 20;
  static constexpr std::size_t kMinWorkspaceBytes = std::size_t{512} << 10;
  static constexpr std::size_t kMaxWorkspaceBytes = std::size_t{1} << 30;
  static constexpr std::size_t kWorkspaceUnit = std::size_t{64} << 10;
  static constexpr std::size_t kDefaultDeviceWorkspaceBytes = std::size_t{64} << 20;
  static constexpr int kMostDeviceBlocks = 64;

  explicit ProcessGroupSymmOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout);
  ProcessGroupSymmOptions(const ProcessGroupSymmOptions&) = default;
  // From torch 2.14 on this overrides.
  // NOLINTNEXTLINE(modernize-use-override)
  c10::intrusive_ptr<c10d::Backend::Options> clone() const {
    return c10::make_intrusive<ProcessGroupSymmOptions>(*this);
  }

  // A copy of `options` where it is of this type, else one that takes over what every backend's
  // options have. nullptr gives the defaults.
  static c10::intrusive_ptr<ProcessGroupSymmOptions> from(
      const c10::intrusive_ptr<c10d::Backend::Options>& options);

  // The algorithm of every collective that has it; "auto" lets a table decide.
  const std::string& algorithm() const { return algorithm_; }
  void set_algorithm(const std::string& name);

  // A rank's staging memory: a multiple of 64 KiB, 512 KiB to 1 GiB.
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  void set_workspace_bytes(std::int64_t bytes);

  // The same on a GPU, where it is allocated by the first operation: a multiple of 1 MiB, 4 MiB to
  // 4 GiB.
  std::size_t device_workspace_bytes() const { return device_workspace_bytes_; }
  void set_device_workspace_bytes(std::int64_t bytes);

  // The most blocks of a collective on a GPU: 1 to 64, as many as there are by default; messages of
  // a peer and direction have half as many. Few leave multiprocessors to what runs beside, and take
  // longer. Must be the same on every rank.
  int max_device_blocks() const { return max_device_blocks_; }
  void set_max_device_blocks(std::int64_t blocks);

  // What carries bytes between hosts where the ranks are on several: "auto", "none", a c10d
  // backend's name ("gloo"), or one for each device ("cpu:gloo,cuda:nccl"). "auto" takes
  // SYMM_INTER_HOST where that is set. Must be the same on every rank.
  std::string inter_host() const;
  void set_inter_host(const std::string& name);

  // Reductions give the same bits by every algorithm; false lets algorithms be named that cannot
  // (multimem). Must be the same on every rank.
  bool deterministic = true;

  // Asynchronous operations on a GPU run on streams of high priority; the host has none.
  bool is_high_priority_stream = false;

  // Check what the base class lets anybody write: the time-out, and the list of ranks too. Throw as
  // the setters.
  void validate_timeout() const;
  void validate(int world_size) const;

 private:
  std::string algorithm_ = "auto";
  std::string inter_host_ = "auto";
  std::size_t workspace_bytes_ = kDefaultWorkspaceBytes;
  std::size_t device_workspace_bytes_ = kDefaultDeviceWorkspaceBytes;
  int max_device_blocks_ = kMostDeviceBlocks;
};

}  // namespace symm
