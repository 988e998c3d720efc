"""Errors that tests expect: what symm raises, and the words that the text must have."""

import re

from harness import synchronize

# What symm raises; DistBackendError and NotImplementedError are RuntimeErrors.
ERRORS = (RuntimeError, ValueError)
# What its functions in Python raise, which refuse arguments of another type too.
CALL_ERRORS = (*ERRORS, TypeError)


def message_of(kinds, call, *args, **kwargs) -> str:
    """What `call` raises, which must be of `kinds`."""
    try:
        call(*args, **kwargs)
        synchronize()
    except kinds as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{call} raised nothing")


def unsaid(text: str, patterns) -> list[str]:
    """A line for each regular expression that is not in `text`."""
    return [f"{p!r} is not in the message: {text}" for p in patterns if not re.search(p, text)]


def unsaid_in_order(text: str, parts) -> list[str]:
    """A line unless `text` has all `parts`, each behind the one before it."""
    pattern = ".*?".join(re.escape(part) for part in parts)
    return [] if re.search(pattern, text, re.DOTALL) else [f"not {parts} in order in: {text}"]


def not_raised(kind: str, parts, call, *args, **kwargs) -> list[str]:
    """A line unless `call` raises what begins with `kind`, the type's name, and has all `parts`."""
    text = message_of(CALL_ERRORS, call, *args, **kwargs)
    right = text.startswith(kind) and all(part in text for part in parts)
    return [] if right else [f"{kind} {parts} is not what was raised: {text}"]
