"""symm: collectives of PyTorch's distributed package as kernels over shared memory.

Once this package is installed, ``torch.distributed.init_process_group("symm")`` works with nothing
imported: ``import torch`` finds the backend by an entry point. Import this package for the options
of a process group::

    options = torch_symm.Options()
    options.algorithm = "two_shot"
    dist.init_process_group("symm", pg_options=options)

Importing it is cheap: the compiled module is loaded when it is first needed, by the first process
group or by the first use of a name below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_symm._build_info import VERSION as __version__
    from torch_symm._C import ProcessGroupSymm

    Options = ProcessGroupSymm.Options

__all__ = ["Options", "ProcessGroupSymm", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from torch_symm._build_info import VERSION

        return VERSION
    if name in ("Options", "ProcessGroupSymm"):
        from torch_symm._registration import load

        process_group = load().ProcessGroupSymm
        return process_group if name == "ProcessGroupSymm" else process_group.Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
