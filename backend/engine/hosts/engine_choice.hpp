// Which engine carries bytes between hosts, for tensors on the CPU and on GPUs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm {

// What a program asks for: "auto", "none", the name of an engine, or one for each kind of device,
// "cpu:gloo,cuda:nccl", where the kind that is left out has "auto".
struct EngineWish {
  std::string cpu = "auto";
  std::string cuda = "auto";
  bool by_device = false;  // written as "cpu:...,cuda:..."
};

// Throws Error(kInvalidArgument) with `what` in front for another text.
EngineWish parse_engine_wish(std::string_view text, const std::string& what);

// What a rank says of the GPU that it uses.
struct GpuFacts {
  std::string host;
  std::string rank_name;  // "rank 3", for messages
  std::string uuid;
  std::string problem;  // why the engine cannot be used there; "": it can
};

// How CUDA tensors cross hosts.
struct GpuEngine {
  std::string name{};
  bool staged = false;  // through the CPU's memory, by the CPU's engine
  // Every rank has a GPU of its own, so that one group of the engine may have all of them; else
  // only two ranks of different hosts may be in one.
  bool flat = false;
  std::string why{};  // why it is staged though that was not asked for; else ""
};

// The engine that "auto" means, unless something is in its way.
inline constexpr std::string_view kGpuEngine = "nccl";

// `wish`: the engine for CUDA tensors or "auto"; `cpu_engine`: the engine of tensors on the CPU;
// `ranks`: all that are to be connected. The same result on every rank. Throws Error(kUnsupported)
// where the engine was asked for by name and cannot be used.
GpuEngine choose_gpu_engine(const std::string& wish, const std::string& cpu_engine,
                            const std::vector<GpuFacts>& ranks);

}  // namespace symm
