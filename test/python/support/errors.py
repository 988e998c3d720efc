"""Errors that tests expect: what symm raises, and the words that the text must have."""

import re

from harness import synchronize

# What symm raises; DistBackendError and NotImplementedError are RuntimeErrors.
ERRORS = (RuntimeError, ValueError)
# What its functions in Python raise, which refuse arguments of another type too.
CALL_ERRORS = (*ERRORS, TypeError)


def types_of(error: Exception) -> str:
    """The names of all types that catch it but Exception, the narrowest first."""
    kinds = type(error).__mro__
    return " ".join(kind.__name__ for kind in kinds[: kinds.index(Exception)])


def message_of(kinds, call, *args, **kwargs) -> str:
    """The types and the text of what `call` raises, which must be of `kinds`."""
    try:
        call(*args, **kwargs)
        synchronize()
    except kinds as error:
        return f"{types_of(error)}: {error}"
    raise AssertionError(f"{call} raised nothing")


def unsaid(text: str, patterns) -> list[str]:
    """A line for each regular expression that is not in `text`."""
    return [f"{p!r} is not in the message: {text}" for p in patterns if not re.search(p, text)]


def unsaid_in_order(text: str, parts) -> list[str]:
    """A line unless `text` has all `parts`, each behind the one before it."""
    pattern = ".*?".join(re.escape(part) for part in parts)
    return [] if re.search(pattern, text, re.DOTALL) else [f"not {parts} in order in: {text}"]


def not_raised(kind: str, parts, call, *args, **kwargs) -> list[str]:
    """A line unless `call` raises an error that `except kind` catches, where `kind` is not empty,
    and that has all `parts`."""
    text = message_of(CALL_ERRORS, call, *args, **kwargs)
    right = kind in ["", *text.split(":")[0].split()] and all(part in text for part in parts)
    return [] if right else [f"{kind} {parts} is not what was raised: {text}"]
