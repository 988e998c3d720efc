"""symm: collectives of PyTorch's distributed package as kernels over shared memory.

Once this package is installed, ``torch.distributed.init_process_group("symm")`` works with nothing
imported: ``import torch`` finds the backend by an entry point. Import this package for the options
of a process group::

    options = torch_symm.Options()
    options.algorithm = "two_shot"
    dist.init_process_group("symm", pg_options=options)

and for memory that all ranks of a group can read and write: `empty`, `zeros`, `ones`, `full` and
`mem_pool` allocate it, `is_symmetric` and `as_symmetric` are for tensors that exist already,
`contiguous_view` gives all ranks' tensors as one, `SymmetricTensor` the way to each peer's, and
`memory_provider` says who makes the memory.

`host_layout` says which ranks of a group are on which host, `local_group` is the group of those of
this one.

`flight_record` gives the last calls of this process, with their states. `InvalidArgumentError` and
`InvalidTypeError` are what wrong arguments raise.

`ccl` has collectives that choose their algorithm call by call and say where tensors may stand.
`ops` joins matmuls with their collectives, also as ``torch.ops.symm``.
`triton` is a library for Triton kernels over symmetric memory; it alone imports Triton.

Importing it is cheap: the compiled module is loaded when it is first needed, by the first process
group or by the first use of a name below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_symm import ccl, ops
    from torch_symm._build_info import VERSION as __version__
    from torch_symm._C import ProcessGroupSymm, memory_provider, providers
    from torch_symm.errors import InvalidArgumentError, InvalidTypeError
    from torch_symm.flight import flight_record
    from torch_symm.hosts import host_layout, local_group
    from torch_symm.memory import (
        as_symmetric,
        copy_counts,
        empty,
        full,
        is_symmetric,
        mem_pool,
        ones,
        zeros,
    )
    from torch_symm.views import SymmetricTensor, contiguous_view

    Options = ProcessGroupSymm.Options

# Where the functions and classes in Python are.
_MODULES = {
    "InvalidArgumentError": "errors",
    "InvalidTypeError": "errors",
    "SymmetricTensor": "views",
    "contiguous_view": "views",
    "flight_record": "flight",
    "host_layout": "hosts",
    "local_group": "hosts",
} | dict.fromkeys(
    ("as_symmetric", "copy_counts", "empty", "full", "is_symmetric", "mem_pool", "ones", "zeros"),
    "memory",
)

__all__ = [
    "InvalidArgumentError",
    "InvalidTypeError",
    "Options",
    "ProcessGroupSymm",
    "SymmetricTensor",
    "as_symmetric",
    "ccl",
    "contiguous_view",
    "copy_counts",
    "empty",
    "flight_record",
    "full",
    "host_layout",
    "is_symmetric",
    "local_group",
    "mem_pool",
    "memory_provider",
    "ones",
    "ops",
    "providers",
    "zeros",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from torch_symm._build_info import VERSION

        return VERSION
    if name in ("Options", "ProcessGroupSymm", "memory_provider", "providers"):
        from torch_symm._registration import load

        compiled = load()
        return compiled.ProcessGroupSymm.Options if name == "Options" else getattr(compiled, name)
    if name in ("ccl", "ops", "triton"):
        return importlib.import_module(f"torch_symm.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
