"""What ``import torch`` runs, by the entry point group ``torch.backends``.

An exception here would make torch unimportable, so none leaves this module; and every program that
imports torch pays for it, so it loads neither the compiled module nor any part of torch that is
not loaded yet. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from calling it.
"""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Registers the backend, prepares for the modules of torch that know backends or memory by
    themselves, and installs the replacement that SYMM_REPLACE_BACKEND asks for."""
    try:
        _autoload()
    except Exception as error:
        # Not warnings.warn: a filter may turn a warning into an exception.
        print(f"torch_symm: the start-up hook of the backend symm failed: {error}", file=sys.stderr)


def _autoload() -> None:
    from torch_symm import _environment, _import_hook

    _import_hook.install()
    configured = any(name in os.environ for name in _environment.CHECKS)
    if "torch.distributed.distributed_c10d" not in sys.modules:
        # torch 2.14 and newer ask the entry point torch.distributed.backends on first use, so the
        # import of torch.distributed can be left to the program.
        import torch

        major, minor = (int(part) for part in torch.__version__.split(".")[:2])
        found_later = (major, minor) >= (2, 14)
        if found_later and not configured:
            return
        if not torch.distributed.is_available():
            return

    from torch_symm import _registration

    _registration.register()
    if replaced := _environment.backend_name("SYMM_REPLACE_BACKEND"):
        _registration.replace(replaced)
