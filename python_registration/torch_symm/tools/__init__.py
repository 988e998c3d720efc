"""The command line tools. Of torch_symm they alone need more than torch: the extra ``tools``.

The core never imports this package. Each command is a module of torch_symm that says what it needs.

    bench   python -m torch_symm.bench
    probe   python -m torch_symm.probe
    info    python -m torch_symm.info
    run     python -m torch_symm.run
    audit   python -m torch_symm.audit
    tune    python -m torch_symm.tune
    command what the command lines of bench, probe and tune share
    ranks   processes for bench, probe and tune: one a rank, watched
    machine what the tools tell about this machine
"""

from __future__ import annotations

import pkgutil
import sys
from importlib.util import find_spec


def require(command: str, *packages: str) -> None:
    """End the program with exit code 2 and one sentence if ``command`` lacks a package."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " and ".join(missing)
        print(f"{command} needs {names}: pip install 'torch-symm[tools]'", file=sys.stderr)
        sys.exit(2)


def start(tool: str, function: str, *packages: str) -> None:
    """Run ``python -m torch_symm.<tool>`` by "module:function" of this package."""
    command = f"python -m torch_symm.{tool}"
    require(command, *packages)
    pkgutil.resolve_name(f"{__name__}.{function}")(prog_name=command)
