"""Memory that calls stage tensors in."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

from torch_symm import _groups
from torch_symm._registration import load
from torch_symm.memory import with_index

if TYPE_CHECKING:
    import torch

# So that tensors of every dtype may begin there, and copies are fast.
_ALIGNMENT = 4096


@dataclasses.dataclass(frozen=True)
class Stages:
    """Symmetric memory for an input and for an output, `nbytes` of each."""

    nbytes: int
    input: torch.Tensor
    output: torch.Tensor


class Workspace:
    """Two pieces of symmetric memory of one group on one device, made by `make_workspace`.

    Every collective stages what it must through memory of the group's own, which is bounded and
    there from the start; a workspace is not needed for that. It serves two things:

    * **inputs.** A call whose algorithm lets peers read the input copies an input that is not
      symmetric into the workspace in one piece, and peers read it there. Without a workspace it
      passes through the group's slots chunk by chunk.
    * **tensors that an algorithm needs in symmetric memory** (`Placement.must_be_symmetric`). One
      that is staged goes through the workspace, and an output is copied back from it. Without a
      workspace the group makes one when it is first needed, keeps it, and replaces it by a larger
      one when it must.

    Calls of one group follow each other on a device, and the copies are part of their call. So one
    workspace serves any number of calls, asynchronous ones too. It must not be dropped before they
    have ended; its memory is given back at the next rendezvous of the group.

    Attributes:
        group: the ProcessGroup.
        device: the device of both pieces.
        nbytes: bytes of each piece: what the largest tensor of a call may have.
    """

    def __init__(self, group: Any, device: torch.device, stages: Stages) -> None:
        self.group = group
        self.device = device
        self.nbytes = stages.nbytes
        self._stages = stages

    def __repr__(self) -> str:
        return f"Workspace(nbytes={self.nbytes}, device={self.device})"


def make_workspace(
    nbytes: int, group: Any = None, device: torch.device | str | None = None
) -> Workspace:
    """A workspace for calls whose tensors have at most `nbytes` bytes each. Collective.

    Blocks; not inside a graph capture.

    Args:
        nbytes: the same on every rank.
        group: a ProcessGroup of symm or its name; the default group where it is None.
        device: "cpu" or "cuda"; the kind must be the same on every rank. The CPU where it is None.

    Raises:
        TypeError, ValueError: `nbytes` is no number from 0 on; ranks differ in what they give, on
            every rank then; this rank is not in `group`.
        NotImplementedError: the group's backend for that device is not symm.
    """
    caller = "make_workspace"
    if not isinstance(nbytes, int) or isinstance(nbytes, bool):
        raise TypeError(f"{caller}: nbytes: expected an int, got {nbytes!r}")
    if nbytes < 0:
        raise ValueError(f"{caller}: nbytes: expected 0 or more, got {nbytes}")
    process_group = _groups.resolve(group, caller)
    place = with_index(device if device is not None else "cpu")
    backend_of(process_group, place, caller, "device")
    return Workspace(process_group, place, _make(nbytes, process_group, place, caller))


def _make(nbytes: int, group: Any, place: torch.device, caller: str) -> Stages:
    same = {name: f"{name}: expected the same" for name in ("nbytes", "device")}
    _groups.all_gather_facts(group, caller, {"nbytes": nbytes, "device": place.type}, same)
    half = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
    memory = load().allocate_bytes(2 * half, place)
    load().share(memory, group.group_name, False)
    return Stages(nbytes, memory[:nbytes], memory[half : half + nbytes])


def check(workspace: Any, group: Any, device: torch.device, nbytes: int, caller: str) -> None:
    """Raises where `workspace` cannot serve a call of `group` whose largest tensor, on `device`,
    has `nbytes` bytes."""
    if not isinstance(workspace, Workspace):
        raise TypeError(
            f"{caller}: workspace: expected one of ccl.make_workspace() or None, got a "
            f"{type(workspace).__name__}"
        )
    if workspace.group is not group:
        raise ValueError(
            f"{caller}: workspace: expected one of the call's group {group.group_name!r}, got one "
            f"of group {workspace.group.group_name!r}; a workspace serves the group it was made for"
        )
    if workspace.device != device:
        raise ValueError(
            f"{caller}: workspace: expected one on {device}, where the tensors are, got one on "
            f"{workspace.device}"
        )
    if workspace.nbytes < nbytes:
        raise ValueError(
            f"{caller}: workspace: expected at least {nbytes} bytes, the largest tensor of the "
            f"call, got {workspace.nbytes}"
        )


# No value refers to its group, so that both are freed together.
_own: weakref.WeakKeyDictionary[Any, Stages] = weakref.WeakKeyDictionary()


def own(group: Any, device: torch.device, nbytes: int, caller: str) -> Stages:
    """The group's own workspace on its GPU, with at least `nbytes`, kept as long as the group.
    Collective where it must be made, which depends on `nbytes` alone."""
    stages = _own.get(group)
    if stages is not None and stages.nbytes >= nbytes:
        return stages
    if _is_capturing(device):
        raise NotImplementedError(
            f"{caller}: output: staging needs {nbytes} bytes that the group has not allocated yet; "
            "call once before capture, or give a workspace"
        )
    _own[group] = _make(nbytes, group, device, caller)
    return _own[group]


def _is_capturing(device: torch.device) -> bool:
    """Whether the current stream of `device`, which need not be the current one, is captured."""
    import torch

    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def backend_of(group: Any, device: torch.device, caller: str, argument: str) -> Any:
    """The ProcessGroupSymm of `group` for tensors on `device`."""
    backend = symm_backend(group, device)
    if backend is None:
        raise NotImplementedError(
            f"{caller}: {argument}: the backend of group {group.group_name!r} for {device} is not "
            "symm; these functions are for groups of the backend symm, on cpu and cuda"
        )
    return backend


def symm_backend(group: Any, device: torch.device) -> Any | None:
    """None where the group has another backend for `device`, or none."""
    try:
        backend = group._get_backend(device)
    except (RuntimeError, ValueError):
        return None
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    return backend if isinstance(backend, load().ProcessGroupSymm) else None
