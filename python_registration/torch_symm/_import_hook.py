"""Does what belongs to a module of torch when a program first imports that module.

``torch.distributed._symmetric_memory`` knows the allocators that are registered in the process, and
``symm_mem.set_backend("SYMM")`` and ``symm_mem.empty(8, device="cpu")`` must work in a program that
has imported nothing else; ``torch.distributed._dist2`` has a table of backends of its own. Loading
the compiled module at ``import torch``, or importing those modules there, would cost every program
that uses neither, so it happens behind their import, which ``import torch`` leaves out.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def load_memory() -> None:
    """Loads the compiled module. Where SYMM_MEMORY_PROVIDER is set, torch's symmetric memory comes
    from that provider, so that a program need not choose one."""
    try:
        from torch_symm import _registration

        module = _registration.load()
        wanted = os.environ.get("SYMM_MEMORY_PROVIDER")
        if wanted == "native":
            # Without asking for GPUs: a program that forks later must not have used any.
            symm_mem = sys.modules["torch.distributed._symmetric_memory"]
            if symm_mem.get_backend("cuda") != "SYMM":
                symm_mem.set_backend("SYMM")
        elif wanted:
            module.memory_provider(module.memory_provider())  # which names the variable
    except Exception as error:
        print(f"torch_symm: symmetric memory is not available: {error}", file=sys.stderr)


def register_dist2() -> None:
    """Makes "symm" known to ``torch.distributed._dist2``."""
    try:
        from torch_symm import _dist2

        _dist2.register()
    except Exception as error:
        print(f"torch_symm: _dist2 does not know symm: {error}", file=sys.stderr)


# What leaves an exception behind would make the import of torch's module fail, so nothing may.
ACTIONS = {
    "torch.distributed._symmetric_memory": load_memory,
    "torch.distributed._dist2": register_dist2,
}


class _Finder:
    """Finds nothing itself; has the loader of a module in `waiting` do its action afterwards."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self._asking: set[str] = set()  # names that this object asks the other finders for

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.waiting or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._asking.remove(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self._imported(name)

        spec.loader.exec_module = execute_and_act
        return spec

    def _imported(self, name: str) -> None:
        # Not before: a program may look for a module and never import it.
        self.waiting.discard(name)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        ACTIONS[name]()


_finder = _Finder()


def install() -> None:
    """Local, idempotent, cheap."""
    for name, action in ACTIONS.items():
        if name in sys.modules:
            action()
        else:
            _finder.waiting.add(name)
    if _finder.waiting and _finder not in sys.meta_path:
        # In front of those that would find the modules first.
        sys.meta_path.insert(0, _finder)
