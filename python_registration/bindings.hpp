// The parts of the module torch_symm._C that have a file of their own.
#pragma once

#include <pybind11/pybind11.h>

namespace symm {

// What torch_symm.ccl is made of. ProcessGroupSymm must have been bound.
void bind_configured_calls(pybind11::module_& module);

// Providers, SymmetricTensor and what torch_symm's functions of symmetric memory are made of.
// torch.distributed must have been imported.
void bind_symmetric_memory(pybind11::module_& module);

}  // namespace symm
