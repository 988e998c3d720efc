// The Python module torch_symm._C: ProcessGroupSymm and its options as subclasses of what
// torch.distributed has, and a few facts about the build.
//
// Built with the pybind11 that ships inside torch: only then do both modules share one registry of
// types, so that c10d hands these classes back to Python as what they are.
#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <symm/inter_host.hpp>
#include <symm/memory_provider.hpp>
#include <utility>
#include <vector>

#include "backend/engine/group/settings.hpp"
#include "backend/engine/record/audit_file.hpp"
#include "backend/engine/record/flight_record.hpp"
#include "backend/process_group_impl.hpp"
#include "backend/streams/device_streams.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "python_registration/bindings.hpp"
#include "symm_mem/bootstrap/host_identity.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/device/memory_handle.hpp"
#include "symm_mem/device/multicast.hpp"
#include "symm_mem/group/device_signals.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/printable_text.hpp"

namespace {

namespace py = pybind11;
using symm::ProcessGroupSymm;
using symm::with_torch_errors;
using Options = ProcessGroupSymm::Options;
using OptionsPtr = c10::intrusive_ptr<Options>;
using Milliseconds = std::chrono::milliseconds;

// Objects are destroyed under the interpreter's lock, which a callback on one of our threads may be
// waiting for; see blocking_section.hpp.
void without_interpreter_lock(void (*body)(void*), void* context) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release release;
    body(context);
  } else {
    body(context);
  }
}

// Py_IsInitialized() is true while the interpreter ends.
void run_signal_handlers() {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() == 0) return;
  throw symm::Interrupted{std::make_exception_ptr(py::error_already_set())};
}

class WrongArgument final : public torch::PyTorchError {
 public:
  WrongArgument(const std::string& message, PyObject* type) : PyTorchError(message), type_(type) {}
  PyObject* python_type() override { return type_; }

 private:
  PyObject* type_;  // lives as long as the process
};

PyObject* invalid_argument_error = nullptr;
PyObject* invalid_type_error = nullptr;

void throw_wrong_argument(const std::string& message, symm::ErrorCode code) {
  const bool of_type = code == symm::ErrorCode::kInvalidType;
  throw WrongArgument(message, of_type ? invalid_type_error : invalid_argument_error);
}

void raise_the_types_of_python() {
  const py::module_ errors = py::module_::import("torch_symm.errors");
  invalid_argument_error = py::object(errors.attr("InvalidArgumentError")).release().ptr();
  invalid_type_error = py::object(errors.attr("InvalidTypeError")).release().ptr();
  symm::set_wrong_argument_hook(&throw_wrong_argument);
}

// What torch_symm._engines raises becomes an exception of C++, which needs no lock.
template <typename Body>
auto ask_engines(Body&& body) {
  const py::gil_scoped_acquire lock;
  try {
    return body(py::module_::import("torch_symm._engines"));
  } catch (const py::error_already_set& error) {
    const std::string text = error.what();  // a traceback follows the words
    throw std::runtime_error(text.substr(0, text.find("\n\nAt:")));
  }
}

std::string problem_of_engine(const std::string& name) {
  return ask_engines([&](const py::module_& engines) {
    return engines.attr("problem")(name).cast<std::string>();
  });
}

c10::intrusive_ptr<c10d::Backend> make_engine(const std::string& name,
                                              const c10::intrusive_ptr<c10d::Store>& store,
                                              int rank, int size, Milliseconds timeout) {
  return ask_engines([&](const py::module_& engines) {
    return engines.attr("make")(name, store, rank, size, timeout)
        .cast<c10::intrusive_ptr<c10d::Backend>>();
  });
}

std::string problem_of_gpu_engine(const std::string& name) {
  return ask_engines([&](const py::module_& engines) {
    return engines.attr("gpu_problem")(name).cast<std::string>();
  });
}

c10::intrusive_ptr<c10d::Backend> make_gpu_engine(const std::string& name,
                                                  const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size, Milliseconds timeout,
                                                  c10::Device device) {
  return ask_engines([&](const py::module_& engines) {
    return engines.attr("make_for_gpu")(name, store, rank, size, timeout, device.index())
        .cast<c10::intrusive_ptr<c10d::Backend>>();
  });
}

bool engine_releases_memory(const std::string& name) {
  return ask_engines([&](const py::module_& engines) {
    return engines.attr("releases_memory")(name).cast<bool>();
  });
}

OptionsPtr make_options(Milliseconds timeout, const std::string& algorithm,
                        std::int64_t workspace_bytes, std::int64_t device_workspace_bytes,
                        bool is_high_priority_stream, bool deterministic,
                        const std::string& inter_host, std::int64_t max_device_blocks) {
  auto options = c10::make_intrusive<Options>(timeout);
  options->set_algorithm(algorithm);
  options->set_workspace_bytes(workspace_bytes);
  options->set_device_workspace_bytes(device_workspace_bytes);
  options->is_high_priority_stream = is_high_priority_stream;
  options->deterministic = deterministic;
  options->set_inter_host(inter_host);
  options->set_max_device_blocks(max_device_blocks);
  options->validate_timeout();
  return options;
}

void set_timeout(Options& options, Milliseconds timeout) {
  Options(timeout).validate_timeout();
  options.timeout = timeout;
}

void bind_options(py::class_<ProcessGroupSymm, c10::intrusive_ptr<ProcessGroupSymm>, c10d::Backend>&
                      process_group) {
  py::class_<Options, OptionsPtr, c10d::Backend::Options>(
      process_group, "Options",
      "What a program may choose for a process group. A wrong value raises ValueError when it is\n"
      "set. A group copies its options, so one object may serve several.")
      .def(py::init(&make_options), py::arg("timeout") = kBackendDefaultTimeout,
           py::arg("algorithm") = "auto",
           py::arg("workspace_bytes") = static_cast<std::int64_t>(Options::kDefaultWorkspaceBytes),
           py::arg("device_workspace_bytes") =
               static_cast<std::int64_t>(Options::kDefaultDeviceWorkspaceBytes),
           py::arg("is_high_priority_stream") = false, py::arg("deterministic") = true,
           py::arg("inter_host") = "auto",
           py::arg("max_device_blocks") = Options::kMostDeviceBlocks)
      .def_property(
          "timeout", [](const Options& o) { return o.timeout; }, &set_timeout,
          "How long an operation waits for its peers (datetime.timedelta).")
      .def_property("algorithm", &Options::algorithm, &Options::set_algorithm,
                    "The algorithm of every collective that has it; \"auto\" lets a table decide.")
      .def_property(
          "inter_host", &Options::inter_host, &Options::set_inter_host,
          "What carries bytes between hosts: \"auto\", \"none\", a backend's name\n"
          "(\"gloo\"), or one for each device (\"cpu:gloo,cuda:nccl\"). Must be the same\n"
          "on every rank.")
      .def_property(
          "workspace_bytes", &Options::workspace_bytes, &Options::set_workspace_bytes,
          "Staging memory of a rank: a multiple of 64 KiB, 512 KiB to 1 GiB. Must be the\n"
          "same on every rank.")
      .def_property(
          "device_workspace_bytes", &Options::device_workspace_bytes,
          &Options::set_device_workspace_bytes,
          "The same on a GPU, allocated by the first operation there: a multiple of 1 MiB,\n"
          "4 MiB to 4 GiB. Must be the same on every rank.")
      .def_property(
          "max_device_blocks", &Options::max_device_blocks, &Options::set_max_device_blocks,
          "The most blocks of a collective on a GPU, 1 to 64; messages of a peer and\n"
          "direction have half as many. Few leave multiprocessors to what runs beside, and\n"
          "take longer. Must be the same on every rank.")
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream,
                     "Asynchronous operations on a GPU run on streams of high priority.")
      .def_readwrite(
          "deterministic", &Options::deterministic,
          "Reductions give the same bits by every algorithm. False lets algorithms be named\n"
          "that cannot (\"multimem\"). Must be the same on every rank.")
      .def("__copy__", [](const Options& o) { return c10::make_intrusive<Options>(o); })
      .def("__deepcopy__",
           [](const Options& o, const py::dict&) { return c10::make_intrusive<Options>(o); })
      .def("__repr__", [](const Options& o) {
        return "Options(timeout=" + std::to_string(o.timeout.count()) + " ms, algorithm='" +
               o.algorithm() + "', workspace_bytes=" + std::to_string(o.workspace_bytes()) +
               ", device_workspace_bytes=" + std::to_string(o.device_workspace_bytes()) +
               ", deterministic=" + (o.deterministic ? "True" : "False") + ")";
      });
}

void bind_process_group(py::module_& module) {
  py::class_<ProcessGroupSymm, c10::intrusive_ptr<ProcessGroupSymm>, c10d::Backend> process_group(
      module, "ProcessGroupSymm", "The c10d backend of the name \"symm\".");
  bind_options(process_group);
  process_group
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       const OptionsPtr& options) {
             const py::gil_scoped_release release;
             return c10::make_intrusive<ProcessGroupSymm>(store, rank, size, options);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options") = OptionsPtr(),
           "Connects the ranks of the group through `store`. Collective.")
      .def_property_readonly("options", &ProcessGroupSymm::getBackendOptions,
                             "A copy of the options that the group was made with.")
      .def(
          "perform_nocolor_split", [](ProcessGroupSymm&, const py::object&) {}, py::arg("device"),
          "Does nothing: ranks outside a new group have no part in making it.")
      .def("_set_default_timeout", &ProcessGroupSymm::setTimeout, py::arg("timeout"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "_hosts",
          [](ProcessGroupSymm& group) {
            const symm::HostGroup* const hosts = ProcessGroupSymm::Impl::of(group).hosts();
            return hosts == nullptr ? std::vector<std::vector<int>>() : hosts->layout().members;
          },
          "The group ranks of each host; [] where all are on one.")
      .def(
          "_host_names",
          [](ProcessGroupSymm& group) {
            const symm::HostGroup* const hosts = ProcessGroupSymm::Impl::of(group).hosts();
            return hosts == nullptr ? std::vector<std::string>{symm::host_id()}
                                    : hosts->layout().names;
          },
          "What the ranks say that their hosts are, in the order of _hosts().")
      .def(
          "_between_hosts",
          [](ProcessGroupSymm& group) {
            const symm::HostGroup* const hosts = ProcessGroupSymm::Impl::of(group).hosts();
            return hosts == nullptr ? std::string() : hosts->engine_name();
          },
          "The backend that carries bytes between hosts; \"\" where all are on one.")
      .def(
          "_gpus_between_hosts",
          [](ProcessGroupSymm& group) {
            const symm::HostGroup* const hosts = ProcessGroupSymm::Impl::of(group).hosts();
            const symm::GpuHosts* const gpu = hosts == nullptr ? nullptr : hosts->gpu_if_made();
            return gpu == nullptr ? std::string() : gpu->engine_text().value_or("");
          },
          py::call_guard<py::gil_scoped_release>(),
          "The same of CUDA tensors; \"\" before their first collective.")
      .def("get_error", &ProcessGroupSymm::getError, py::call_guard<py::gil_scoped_release>(),
           "SUCCESS while the group works, else the kind of the failure.");
}

std::string device_library_problem(const std::string& device) {
  for (const symm::DeviceKind kind : {symm::DeviceKind::kCuda, symm::DeviceKind::kHip}) {
    if (device == symm::device_kind_name(kind)) {
      return symm::printable(symm::device_library_problem(kind));
    }
  }
  throw py::value_error("device: expected 'cuda' or 'hip', got '" + device + "'");
}

// What the compiled part makes of one of its variables.
std::string environment_value(const std::string& name) {
  return with_torch_errors([&]() -> std::string {
    if (name == "SYMM_ALGO") return std::string(algorithm_name(symm::algorithm_in_environment()));
    if (name == "SYMM_DETERMINISTIC") return symm::deterministic_in_environment() ? "1" : "0";
    if (name == "SYMM_POISON") return symm::poison_in_environment() ? "1" : "0";
    if (name == "SYMM_ON_FAILURE") return symm::failure_grace_in_environment() ? "abort" : "raise";
    if (name == "SYMM_FAILURE_GRACE_MS") {
      static_cast<void>(symm::failure_grace_in_environment());  // throws where it is wrong
      const char* const grace = std::getenv(name.c_str());
      return grace == nullptr ? "5000" : grace;
    }
    if (name == "SYMM_RETURN_WORK") return symm::return_work_in_environment() ? "1" : "0";
    if (name == "SYMM_HOST_ID") return symm::host_id();
    if (name == "SYMM_INTER_HOST") return Options().inter_host();
    if (name == "SYMM_NAN_CHECK") return symm::nan_check_in_environment() ? "1" : "0";
    if (name == "SYMM_AUDIT") {
      const char* const path = symm::audit_prefix_in_environment();
      return path == nullptr ? "" : symm::printable(path);
    }
    if (name == "SYMM_DISABLE_MULTICAST") return symm::multicast_disabled() ? "1" : "0";
    if (name == "SYMM_HANDLE_TYPE") {
      return std::string(symm::handle_preference_name(symm::handle_preference()));
    }
    if (name == "SYMM_ISA") return std::string(symm::isa_name(symm::selected_isa()));
    if (name == "SYMM_MEMORY_PROVIDER") return symm::memory_provider();
    if (name == "SYMM_SIGNAL_TRAP") return symm::signal_trap_in_environment() ? "1" : "0";
    if (name == "SYMM_SINGLE_COPY") {
      return symm::single_copy_name(symm::single_copy_in_environment());
    }
    if (name == "SYMM_WIRE") return symm::wire_choice_name(symm::wire_in_environment());
    if (name == "SYMM_TUNING_FILE") {
      static_cast<void>(symm::tables_in_environment());  // throws where the file is wrong
      const char* const path = std::getenv(name.c_str());
      return path == nullptr ? "" : symm::printable(path);
    }
    throw py::value_error("name: got '" + name + "'");
  });
}

// The plan tables of groups that are made here, as the JSON of a tuning file.
std::string plan_tables() {
  return with_torch_errors([] { return symm::tables_in_environment().to_json(); });
}

std::optional<py::bytes> flight_record() {
  std::string dump;
  {
    const py::gil_scoped_release release;
    symm::FlightRecord* const record =
        with_torch_errors([] { return symm::FlightRecord::of_process(); });
    if (record == nullptr) return std::nullopt;
    dump = record->dump();
  }
  return py::bytes(dump);
}

py::dict build_info() {
  py::dict info;
  info["torch"] = TORCH_VERSION;
  info["compiler"] = __VERSION__;
  info["device_library_version"] = symm::kDeviceLibraryVersion;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The compiled part of torch_symm.";
  // Registers Backend, Backend.Options and Store, which the classes below need.
  py::module_::import("torch.distributed");
  symm::set_blocking_hook(&without_interpreter_lock);
  symm::set_interrupt_hook(&run_signal_handlers);
  raise_the_types_of_python();
  symm::set_inter_host_engines({.problem = &problem_of_engine,
                                .make = &make_engine,
                                .releases_memory = &engine_releases_memory,
                                .gpu_problem = &problem_of_gpu_engine,
                                .make_for_gpu = &make_gpu_engine});
  bind_process_group(module);
  symm::bind_configured_calls(module);
  symm::bind_symmetric_memory(module);

  module.def("device_library_problem", &device_library_problem, py::arg("device"),
             "The sentence that says why tensors on `device` (\"cuda\", \"hip\") cannot be used, "
             "or \"\".");
  module.def("flight_record", &flight_record,
             "The flight record of this process as a pickle; None where it is switched off.");
  module.def("build_info", &build_info, "What this module was compiled with.");

  module.def("plan_tables", &plan_tables, py::call_guard<py::gil_scoped_release>(),
             "The plan tables of groups that are made here, as the JSON of a tuning file.");
  module.def("environment_value", &environment_value, py::arg("name"),
             py::call_guard<py::gil_scoped_release>(),
             "What the compiled part reads from its variable; ValueError for a wrong value.");
  module.def(
      "multicast_switches",
      [] {
        py::dict switches;
        for (const char* name : symm::kMulticastSwitches) {
          switches[name] = symm::turns_multicast_off(name);
        }
        return switches;
      },
      "For each variable that can turn multicast off, whether it does.");

  py::module_::import("atexit").attr("register")(py::cpp_function(
      [] { symm::interrupt_live_groups(); }, py::call_guard<py::gil_scoped_release>()));
}
