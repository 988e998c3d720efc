"""What happens around the launch of a kernel in Triton's interpreter.

Nothing on a GPU, where Triton asks the context for its address at each launch (`Context.data_ptr`).
"""

from __future__ import annotations

import functools
from typing import Any

from triton.runtime import interpreter

from torch_symm.triton.context import Context
from torch_symm.triton.settings import INTERPRETED


def install() -> None:
    """Local, idempotent."""
    original = interpreter.GridExecutor.__call__
    if not INTERPRETED or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        contexts = [one for one in (*args, *kwargs.values()) if isinstance(one, Context)]
        for one in contexts:
            one.check()
        try:
            original(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            if not contexts:
                raise
            raise _origin(error) from None  # the interpreter has wrapped it once a function

    interpreter.GridExecutor.__call__ = launch


def _origin(error: BaseException) -> BaseException:
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error
