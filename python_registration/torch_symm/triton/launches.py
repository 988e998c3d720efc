"""What happens around the launch of a kernel in Triton's interpreter.

Nothing on a GPU, where Triton asks the context for its address at each launch (`Context.data_ptr`).
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from triton.runtime import interpreter

from torch_symm.triton.context import Context
from torch_symm.triton.settings import INTERPRETED, RACE_CHECK

if RACE_CHECK:
    from torch_symm.triton import race


def install() -> None:
    """Local, idempotent."""
    original = interpreter.GridExecutor.__call__
    if not INTERPRETED or hasattr(original, "__wrapped__"):
        return

    if RACE_CHECK:
        race.install()

    @functools.wraps(original)
    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        contexts = [one for one in (*args, *kwargs.values()) if isinstance(one, Context)]
        for one in contexts:
            one.check()
        try:
            with race.launch() if RACE_CHECK else contextlib.nullcontext():
                original(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            if not contexts:
                raise
            raise _origin(error) from None  # the interpreter has wrapped it once a function
        if RACE_CHECK:
            race.report()

    interpreter.GridExecutor.__call__ = launch


def _origin(error: BaseException) -> BaseException:
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error
