"""Registers symmetric memory when a program first imports torch's API for it.

``torch.distributed._symmetric_memory`` knows the allocators that are registered in the process, and
``symm_mem.set_backend("SYMM")`` and ``symm_mem.empty(8, device="cpu")`` must work in a program that
has imported nothing else. Loading the compiled module at ``import torch`` would cost every program
that uses neither, so it is loaded behind the import of that module, which ``import torch`` leaves
out.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MODULE = "torch.distributed._symmetric_memory"


class _Finder:
    """Finds nothing itself; has the loader of MODULE load the compiled module afterwards."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(_Finder)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_load(module: ModuleType) -> None:
            execute(module)
            load()

        spec.loader.exec_module = execute_and_load
        return spec


def install() -> None:
    """Local, idempotent, cheap."""
    if MODULE in sys.modules:
        load()
    elif _Finder not in sys.meta_path:
        # In front of those that would find the module first.
        sys.meta_path.insert(0, _Finder)


def load() -> None:
    """Loads the compiled module. The import of torch's module succeeds in any case."""
    try:
        from torch_symm import _registration

        _registration.load()
    except Exception as error:
        print(f"torch_symm: symmetric memory is not available: {error}", file=sys.stderr)
