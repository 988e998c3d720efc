// What torch_symm has of symmetric memory: the choice of its provider, SymmetricTensor, and what
// the functions of torch_symm.memory and torch_symm.views are made of.
//
// What asks for the provider or waits runs without the interpreter's lock: the choice of the
// provider is locked while Python code allocates (provider_registry.hpp), and peers are other
// processes.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <symm/SymmetricTensor.hpp>
#include <symm/memory_provider.hpp>
#include <utility>

#include "python_registration/bindings.hpp"
#include "symm_mem/c10d/allocation.hpp"
#include "symm_mem/c10d/contiguous_view.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/c10d/kernel_watch.hpp"
#include "symm_mem/c10d/provider_registry.hpp"
#include "symm_mem/c10d/symmetric_allocator.hpp"
#include "symm_mem/c10d/user_buffer.hpp"

namespace symm {

namespace {

namespace py = pybind11;
using WithoutLock = py::call_guard<py::gil_scoped_release>;
using OptionalName = std::optional<std::string>;

void bind_providers(py::module_& module) {
  module.def(
      "memory_provider", &memory_provider, py::arg("name") = OptionalName(), WithoutLock(),
      "Chooses who makes symmetric memory in this process, and returns the name of the choice.\n\n"
      "Local. Without `name` it only tells: what was chosen, else SYMM_MEMORY_PROVIDER, else\n"
      "\"native\".\n\n"
      "Args:\n"
      "    name: \"native\" (symm; CPU and CUDA), or \"cuda\", \"nccl\", \"nvshmem\" (torch's own; "
      "CUDA).\n\n"
      "Raises:\n"
      "    ValueError: an unknown name; the message lists the known ones.\n"
      "    NotImplementedError: this machine's torch does not have it, or another one is in use\n"
      "        already. The former choice stands, and choosing can be tried again.");
  module.def("providers", &providers, WithoutLock(),
             "Every known provider with the reason why it cannot be used here, \"\" where it can.\n"
             "Local.");
  module.def(
      "allocate_from_provider",
      [](at::Device device, const std::string& caller, const py::function& allocate) {
        py::object result;
        {
          const py::gil_scoped_release release;
          with_torch_errors([&] {
            allocate_from_provider(device, caller, [&] {
              const py::gil_scoped_acquire acquire;
              result = allocate();
            });
          });
        }
        return result;
      },
      py::arg("device"), py::arg("caller"), py::arg("allocate"),
      "What `allocate()` returns, with the provider selected; the choice stands afterwards.");
  module.def(
      "group_named",
      [](const std::string& name, const std::string& caller) {
        return with_torch_errors([&] { return group_named(name, caller); });
      },
      py::arg("name"), py::arg("caller"), WithoutLock(),
      "The ProcessGroup of this name; ValueError that begins with `caller` where there is none.");
  module.def(
      "rendezvous",
      [](const at::Tensor& tensor, const std::string& group_name, const std::string& caller) {
        return with_torch_errors([&] { return rendezvous(tensor, group_name, caller); });
      },
      py::arg("tensor"), py::arg("group_name"), py::arg("caller"), WithoutLock(),
      "torch's handle of the tensor's memory, None for memory that cannot be shared. Collective\n"
      "the first time for a group; local afterwards with the provider native.");
}

void bind_symmetric_tensor(py::module_& module) {
  using Tensor = SymmetricTensor;
  const auto rank = py::arg("rank");
  const auto channel = py::arg("channel") = 0;
  const auto timeout = py::arg("timeout") = Tensor::Timeout();
  py::class_<Tensor>(module, "SymmetricTensor", "The base of torch_symm.SymmetricTensor.")
      .def(py::init<at::Tensor, std::string>(), py::arg("tensor"), py::arg("group_name"),
           WithoutLock())
      .def_property_readonly("local", &Tensor::local, "This rank's tensor.")
      .def_property_readonly("provider", &Tensor::provider, "The name of the memory provider.")
      .def_property_readonly("handle", &Tensor::handle,
                             "The handle of torch's symmetric memory, for kernels and for torch's "
                             "operators.")
      .def_property_readonly("rank", &Tensor::rank)
      .def_property_readonly("world_size", &Tensor::world_size)
      .def("remote", &Tensor::remote, rank, WithoutLock(),
           "The tensor of `rank`, to be read and written here; `local` for this rank's own. Local."
           "\n\nIt does not keep the peer's memory alive: keep this object.")
      .def("signal_pad", &Tensor::signal_pad, rank, WithoutLock(),
           "The signal pad of `rank` as uint32. Leave it zero. Local.")
      .def(
          "barrier", &Tensor::barrier, channel, timeout, WithoutLock(),
          "Waits for all ranks; what they wrote before is seen after. Collective.\n\n"
          "On a GPU an operation of the current stream. Without `timeout` (datetime.timedelta, or\n"
          "seconds as a float), that of the group.")
      .def("put_signal", &Tensor::put_signal, rank, channel, timeout, WithoutLock(),
           "Tells `rank` that what this rank wrote before can be read; waits while `rank` has not\n"
           "taken the signal before. As `barrier` otherwise.")
      .def("wait_signal", &Tensor::wait_signal, rank, channel, timeout, WithoutLock(),
           "Waits for the signal of `rank` and takes it. As `barrier` otherwise.")
      .def(
          "multicast_pointer",
          [](const Tensor& self) {
            return reinterpret_cast<std::uintptr_t>(self.multicast_pointer());
          },
          WithoutLock(),
          "The address at which a store reaches every rank's tensor. Local.\n\n"
          "Raises NotImplementedError where there is none, and says why; never 0.")
      .def("contiguous_view", &Tensor::contiguous_view, WithoutLock(),
           "All ranks' tensors as one, `torch_symm.contiguous_view`. Collective.");
}

void bind_kernel_watch(py::module_& module) {
  py::class_<KernelWatch>(module, "KernelWatch",
                          "Words that end the waits of kernels; see kernel_watch.hpp.")
      .def(py::init([](const std::string& group_name, at::Tensor words) {
             return with_torch_errors(
                 [&] { return std::make_unique<KernelWatch>(group_name, std::move(words)); });
           }),
           py::arg("group_name"), py::arg("words"), WithoutLock())
      .def(
          "check_usable",
          [](const KernelWatch& self) { with_torch_errors([&] { self.check_usable(); }); },
          WithoutLock())
      .def("problem", &KernelWatch::problem, WithoutLock())
      .def("rank_report", &KernelWatch::rank_report, py::arg("rank"), WithoutLock())
      .def("timeout_ms", &KernelWatch::timeout_ms, py::arg("like"), WithoutLock())
      .def_readonly_static("FIRST_RANK", &KernelWatch::kFirstRank);
}

void bind_user_buffer(py::module_& module) {
  py::class_<UserBuffer>(
      module, "UserBuffer",
      "The storage of a tensor of another allocator that peers could map in place.")
      .def_property_readonly("offset", &UserBuffer::offset)
      .def_property_readonly("bytes", &UserBuffer::bytes)
      .def(
          "share",
          [](UserBuffer& self, const std::string& group_name, bool symmetric) {
            return with_torch_errors([&] { return self.share(group_name, symmetric); });
          },
          py::arg("group_name"), py::arg("symmetric"), WithoutLock(),
          "Makes it symmetric in the group. Collective. \"\", or why that cannot be, on every "
          "rank.");
  module.def(
      "user_buffer_of",
      [](const at::Tensor& tensor) {
        return with_torch_errors([&] { return UserBuffer::of(tensor); });
      },
      py::arg("tensor"), "None where the storage of `tensor` cannot be shared in place. Local.");
}

}  // namespace

void bind_symmetric_memory(py::module_& module) {
  register_symmetric_memory();
  bind_providers(module);
  bind_symmetric_tensor(module);
  bind_user_buffer(module);
  bind_kernel_watch(module);
  module.def("contiguous_view", &contiguous_view, py::arg("tensor"), py::arg("group_name"),
             WithoutLock(),
             "All ranks' copies of a symmetric tensor as one, [world_size, *shape]. Collective.");
  module.def("is_symmetric", &is_symmetric, py::arg("tensor"), py::arg("group_name"), WithoutLock(),
             "Whether `tensor` is in symmetric memory, and has joined the group, if one is named.");
  module.def("place_of", &place_of, py::arg("tensor"), WithoutLock(),
             "(bytes from the start of its allocation, bytes of that), None for other memory.");
  module.def(
      "allocate_bytes",
      [](std::int64_t bytes, at::Device device) {
        return with_torch_errors([&] { return allocate_bytes(bytes, device); });
      },
      py::arg("nbytes"), py::arg("device"), WithoutLock(),
      "A uint8 tensor of zeros in memory of symm, whatever provider was chosen. Local.");
  module.def("own_handle", &own_handle, py::arg("tensor"), py::arg("group_name"), WithoutLock(),
             "torch's handle of a tensor in memory of symm, whatever provider was chosen; None for "
             "memory of others. Collective the first time for a group.");
  module.def("share", &share, py::arg("tensor"), py::arg("group_name"), py::arg("symmetric"),
             WithoutLock(),
             "Makes the memory of `tensor` symmetric in the group. Collective. False for memory of "
             "others.");
  module.def("all_gather_message", &all_gather_message, py::arg("group_name"), py::arg("message"),
             WithoutLock(), "Everybody's message, by rank. Collective.");
  module.def("mappings_made", &mappings_made,
             "Mappings of symmetric memory that this process has made so far.");
}

}  // namespace symm
