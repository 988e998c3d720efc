"""Runs a script unchanged with symm in the place of the backend that it names.

    python -m torch_symm.run --replace gloo script.py --its --arguments
    python -m torch_symm.run --replace nccl -m package.module --its --arguments
    torchrun --nproc-per-node 4 -m torch_symm.run --replace gloo script.py

Processes that the script starts inherit the replacement through SYMM_REPLACE_BACKEND, which has
the same effect on its own: ``SYMM_REPLACE_BACKEND=gloo torchrun ... script.py``.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Annotated

import typer

_EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}
app = typer.Typer(add_completion=False)


@app.command(context_settings={**_EXTRA, "allow_interspersed_args": False})
def run(
    context: typer.Context,
    replace: Annotated[str, typer.Option(help="The backend that the script asks for.")],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name.")] = False,
) -> None:
    """Runs SCRIPT [ARGUMENTS...] with symm in the place of another backend."""
    if not context.args:
        raise typer.BadParameter("name the script to run after the options")
    script, *arguments = context.args
    _install(replace)
    sys.argv = [script, *arguments]
    if module:
        sys.path[0] = os.getcwd()
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")


def _install(replace: str) -> None:
    os.environ["SYMM_REPLACE_BACKEND"] = replace
    from torch_symm import _environment

    try:
        _environment.check()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    # import torch may have come before (python -m runs the package first), or not call autoload.
    import torch.distributed as dist

    if not dist.is_available():
        raise typer.BadParameter("this torch has no torch.distributed")
    from torch_symm import _registration

    _registration.register()
    _registration.replace(replace)


def main(prog_name: str) -> None:
    """Runs the command line; the script's own exceptions and exit status come through unchanged."""
    try:
        app(prog_name=prog_name, standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            sys.exit(error.exit_code)
        raise
