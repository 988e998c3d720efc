"""Makes the name "symm" known to torch.distributed, or others stand for it, and creates groups.

NOTE [One binary for one torch]
The layout of c10d's classes changes between minor versions of torch, so a build works with the
minor version that it was built for and no other. That is checked before the compiled module is
loaded, because loading the wrong one ends in an unreadable symbol error or a crash.
"""

from __future__ import annotations

import copy
import datetime
import functools
import importlib
import os
from types import ModuleType
from typing import Any

from torch_symm import _environment

BACKEND = "symm"

# The device types whose tensors the backend takes.
DEVICES = ["cpu", "cuda"]

_replaced: str | None = None


def register() -> None:
    """Registers the backend with torch.distributed. Local, idempotent, cheap.

    The devices keep the default backend that they have, unless SYMM_DEFAULT_BACKEND=1 puts symm
    there; a GPU keeps it in any case where no device library was installed with this package.
    This is also the registrar of the entry point group ``torch.distributed.backends``.
    """
    from torch.distributed.distributed_c10d import Backend

    if BACKEND.upper() not in Backend._plugins:
        Backend.register_backend(BACKEND, create, extended_api=True, devices=list(DEVICES))
    if _environment.flag("SYMM_DEFAULT_BACKEND"):
        for device in DEVICES if _has_device_library() else ["cpu"]:
            Backend.default_device_backend_map[device] = BACKEND


def _has_device_library() -> bool:
    """Looks for files only: asking whether a GPU can be used would slow `import torch` down."""
    folder = os.path.dirname(__file__)
    names = ("libsymm_cuda.so", "libsymm_hip.so")
    return any(os.path.exists(os.path.join(folder, name)) for name in names)


def replace(replaced: str) -> None:
    """Makes ``Backend(replaced)`` mean symm in this process. Local, idempotent.

    Every path by which torch.distributed takes a backend's name (``init_process_group``,
    ``new_group``, DeviceMesh, the per-device default) goes through ``Backend(name)``, so that is
    the one place where the name is exchanged. The constants, such as ``Backend.GLOO``, keep their
    values.
    """
    global _replaced
    from torch.distributed.distributed_c10d import Backend

    replaced = replaced.lower()
    if _replaced == replaced:
        return
    if _replaced is not None:
        raise ValueError(
            f"symm already stands in for {_replaced} in this process; it cannot also stand "
            f"in for {replaced}"
        )
    original = Backend.__new__

    def new(cls: type, name: str) -> str:
        if isinstance(name, str):
            # "gloo", or inside "cpu:gloo,cuda:nccl".
            parts = [part.rpartition(":") for part in name.split(",")]
            name = ",".join(
                device + colon + (BACKEND if one.strip().lower() == replaced else one)
                for device, colon, one in parts
            )
        return original(cls, name)

    Backend.__new__ = staticmethod(new)
    _replaced = replaced


def create(dist_backend_opts: Any, pg_options: Any | None) -> Any:
    """Creates the backend of one process group; torch.distributed calls it. Collective.

    Args:
        dist_backend_opts: the store, rank, size, names and time-out that c10d gives.
        pg_options: a ``torch_symm.Options`` or None. It is copied, so one object may serve several
            groups. The ``timeout`` argument of ``init_process_group`` wins over the one in the
            options, unless that argument was left at its default.

    Raises:
        TypeError: ``pg_options`` is of another type.
        ImportError: this build of torch_symm is for another version of torch.
        ValueError: an environment variable has a value that it cannot have.
    """
    _environment.check()
    process_group = load().ProcessGroupSymm
    options = _options(process_group.Options, pg_options, dist_backend_opts.timeout)
    options.group_name = dist_backend_opts.group_id
    options.global_ranks_in_group = list(dist_backend_opts.global_ranks_in_group)
    return process_group(
        dist_backend_opts.store,
        dist_backend_opts.group_rank,
        dist_backend_opts.group_size,
        options,
    )


def _options(options_type: type, given: Any | None, timeout: datetime.timedelta) -> Any:
    from torch.distributed.constants import default_pg_timeout

    if given is None:
        options = options_type()
    elif isinstance(given, options_type):
        options = copy.copy(given)
        if timeout == default_pg_timeout:
            return options
    elif _environment.backend_name("SYMM_REPLACE_BACKEND") and hasattr(given, "_timeout"):
        # The program asked for another backend with that backend's options.
        options = options_type()
        high_priority = getattr(given, "is_high_priority_stream", False)
        options.is_high_priority_stream = high_priority
    else:
        raise TypeError(
            "pg_options of the backend symm must be a torch_symm.Options or None, but is a "
            f"{type(given).__module__}.{type(given).__qualname__}"
        )
    options.timeout = timeout
    return options


@functools.cache
def load() -> ModuleType:
    """Loads the compiled module, once it is certain that it fits the running torch, and registers
    the kernels of ``torch.ops.symm_mem`` and the operators ``torch.ops.symm``."""
    import torch  # noqa: F401  (its libraries must be in the process first)

    _check_torch_version()
    module = importlib.import_module("torch_symm._C")
    # Before _operators, which imports it: its import comes back here (_import_hook.py).
    importlib.import_module("torch.distributed._symmetric_memory")
    importlib.import_module("torch_symm._operators").register()
    importlib.import_module("torch_symm.ops.library").register()
    return module


def _check_torch_version() -> None:
    import torch

    from torch_symm import _build_info

    built = ".".join(_build_info.TORCH_VERSION.split(".")[:2])
    running = ".".join(torch.__version__.split(".")[:2])
    if built != running:
        raise ImportError(
            f"torch_symm {_build_info.VERSION} was built for torch {built}, but torch "
            f"{torch.__version__} is running; install it again with this torch: "
            "pip install --no-build-isolation --force-reinstall --no-deps <torch-symm>"
        )
