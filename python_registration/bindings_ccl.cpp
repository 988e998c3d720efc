// What torch_symm.ccl needs of the compiled module: configured calls, memory that joins a group for
// them, and the table of what is touched remotely.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>
#include <utility>
#include <vector>

#include "backend/process_group_impl.hpp"
#include "kernels/plan/placement.hpp"
#include "kernels/plan/plan.hpp"
#include "python_registration/bindings.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

namespace {

namespace py = pybind11;
using OptionalTensor = std::optional<at::Tensor>;

CollectiveKind kind_from(const std::string& name) {
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    if (kCollectiveKindNames[static_cast<std::size_t>(i)] == name) {
      return static_cast<CollectiveKind>(i);
    }
  }
  throw py::value_error("collective: got '" + name + "'");
}

PlanRequest request_of(const std::string& algorithm, int channels, std::int64_t chunk_bytes) {
  return with_torch_errors([&]() -> PlanRequest {
    return {.algorithm = parse_algorithm(algorithm, "config.algorithm"),
            .channels = channels,
            .chunk_bytes = static_cast<std::size_t>(chunk_bytes)};
  });
}

// (collective, algorithm, "cpu" or "cuda", access) of every algorithm.
std::vector<std::tuple<std::string, std::string, std::string, std::string>> placements() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> table;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    for (const PlanTarget target : {PlanTarget::kHost, PlanTarget::kGpu}) {
      for (int a = 0; a < kAlgorithmCount; ++a) {
        const auto kind = static_cast<CollectiveKind>(k);
        const auto algorithm = static_cast<Algorithm>(a);
        if (!has_algorithm(kind, algorithm, target)) continue;
        table.emplace_back(collective_name(kind), algorithm_name(algorithm),
                           target == PlanTarget::kHost ? "cpu" : "cuda",
                           remote_access_name(remote_access(kind, algorithm, target)));
      }
    }
  }
  return table;
}

}  // namespace

void bind_configured_calls(py::module_& module) {
  module.def(
      "run_configured",
      [](ProcessGroupSymm& group, const std::string& collective, OptionalTensor output,
         OptionalTensor input, c10d::ReduceOp op, std::int64_t root,
         std::vector<std::int64_t> output_splits, std::vector<std::int64_t> input_splits,
         const std::tuple<std::string, int, std::int64_t>& request, OptionalTensor input_stage,
         OptionalTensor output_stage, bool async_op) {
        const ConfiguredCall call{.kind = kind_from(collective),
                                  .output = std::move(output),
                                  .input = std::move(input),
                                  .op = std::move(op),
                                  .root = root,
                                  .output_splits = std::move(output_splits),
                                  .input_splits = std::move(input_splits),
                                  .request = std::apply(request_of, request),
                                  .input_stage = std::move(input_stage),
                                  .output_stage = std::move(output_stage)};
        const py::gil_scoped_release release;
        return ProcessGroupSymm::Impl::of(group).run_configured(call, async_op);
      },
      py::arg("group"), py::arg("collective"), py::arg("output"), py::arg("input"), py::arg("op"),
      py::arg("root"), py::arg("output_splits"), py::arg("input_splits"), py::arg("request"),
      py::arg("input_stage"), py::arg("output_stage"), py::arg("async_op"),
      "One collective of torch_symm.ccl. request: (algorithm, channels, chunk_bytes), 0 for none.");
  module.def(
      "all_reduce_rms_norm",
      [](ProcessGroupSymm& group, at::Tensor total, at::Tensor normed, at::Tensor x,
         at::Tensor weight, OptionalTensor residual, double eps) {
        ProcessGroupSymm::Impl::of(group).all_reduce_rms_norm({std::move(total), std::move(normed),
                                                               std::move(x), std::move(weight),
                                                               std::move(residual), eps});
      },
      py::arg("group"), py::arg("total"), py::arg("normed"), py::arg("x"), py::arg("weight"),
      py::arg("residual"), py::arg("eps"), py::call_guard<py::gil_scoped_release>(),
      "total = the ranks' sum of x, and residual; normed = its RMS norm. On the current stream of "
      "a GPU; what torch_symm.ops.all_reduce_rms_norm calls in one piece.");
  module.def(
      "device_knows",
      [](ProcessGroupSymm& group, const at::Tensor& tensor) {
        return ProcessGroupSymm::Impl::of(group).device_knows(tensor);
      },
      py::arg("group"), py::arg("tensor"), py::call_guard<py::gil_scoped_release>(),
      "Whether collectives of the group find `tensor`, on a GPU, in memory that has joined "
      "it. Local.");
  module.def(
      "device_barrier",
      [](ProcessGroupSymm& group, std::optional<at::Device> device, std::uint32_t alike) {
        ProcessGroupSymm::Impl::of(group).device_barrier(device, alike);
      },
      py::arg("group"), py::arg("device"), py::arg("alike") = 0,
      py::call_guard<py::gil_scoped_release>(),
      "A barrier on the current stream of a GPU, on the host for \"cpu\". `alike`, of a barrier on "
      "a GPU, must be the same on every rank.");
  module.def("placements", &placements,
             "(collective, algorithm, device, what peers touch) of every algorithm.");
}

}  // namespace symm
