"""Capture of a CUDA graph whose failure leaves this process's streams as they were."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class CaptureError(RuntimeError):
    """An operation did not capture; the message is the first line of what it raised."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def capture(function: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Capture what ``function`` puts on ``stream`` and return the graph. Local.

    Global capture mode, torch's default and the strictest. Raises CaptureError with what the
    function raised, or else with what ended the capture. torch leaves the capture's stream
    current where ending it fails; the stream that was current before is current after this.
    """
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    failure: Exception | None = None
    try:
        with torch.cuda.graph(graph, stream=stream):
            try:
                function()
            except Exception as error:
                failure = error
    except Exception as error:
        # What the operation itself said tells more than that its capture could not be ended.
        failure = failure or error
    finally:
        torch.cuda.set_stream(before)
    if failure is not None:
        raise CaptureError(first_line(failure)) from failure
    return graph


class Recording:
    """A captured graph that is replayed on the current stream. Not thread safe."""

    def __init__(self, function: Callable[[], object], stream: torch.cuda.Stream) -> None:
        self._graph = capture(function, stream)

    def replay(self) -> None:
        """Put a replay, and nothing else, on the current stream."""
        self._graph.replay()

    def wait(self) -> None:
        """Wait for what is on the current stream; errors of a replay show here."""
        torch.cuda.current_stream().synchronize()

    def ends_within(self, seconds: float) -> bool:
        """Tell whether what is on the current stream ends in that time."""
        end = torch.cuda.Event()
        end.record()
        until = time.perf_counter() + seconds
        while not end.query():
            if time.perf_counter() > until:
                return False
        return True

    def close(self) -> None:
        """Give the graph back; call before its process group is destroyed."""
        self._graph.reset()
