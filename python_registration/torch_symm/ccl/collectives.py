"""The collectives themselves: what they have in common, and one function for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from torch_symm import _groups
from torch_symm._registration import load
from torch_symm.ccl import placement, workspace
from torch_symm.ccl.config import AUTO, Config
from torch_symm.ccl.workspace import Workspace
from torch_symm.memory import with_index

if TYPE_CHECKING:
    from torch import Tensor


def all_reduce(
    output: Tensor,
    input: Tensor,
    op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    strict: bool = False,
) -> dist.Work | None:
    """Combines every rank's `input`, in the order of group ranks, into `output` on every rank.

    Collective over `group`. On CUDA an operation of the current stream (with `async_op`, of the
    group's) that can be captured once the group is warm.

    Args:
        output: contiguous, of the shape and dtype of `input`; it may be `input`.
        input: is left as it is where it is not `output`.
        op: as in ``torch.distributed.all_reduce``; also PREMUL_SUM.
        group: a ProcessGroup with the backend symm, or its name; None for the default group.
        async_op: returns a Work at once; the tensors must be left alone until its ``wait()``.
        config: the plan of this call, the same on every rank.
        workspace: memory of `make_workspace` to stage in.
        strict: guarantees that the tensors which the algorithm named by `config` needs in symmetric
            memory (`Placement.must_be_symmetric`) are there, each at the same offset on every
            rank, and raises where one does not. Without it they are staged, on every rank, and
            outputs copied back. The same on every rank.

    Returns:
        None, or the Work.

    Raises:
        TypeError, ValueError, NotImplementedError: a wrong argument, by its name; nothing has been
            sent then, and the group goes on.
        torch.distributed.DistBackendError: as the collectives of ``torch.distributed``.
    """
    call = _Call("all_reduce", output, input, group, config, workspace, strict)
    return call.issue(async_op, op=op)


def reduce(
    output: Tensor | None,
    input: Tensor,
    dst: int | None = None,
    op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    group_dst: int | None = None,
    strict: bool = False,
) -> dist.Work | None:
    """`all_reduce` whose result only one rank gets.

    `dst` is that rank as a global rank; `group_dst`, in its place, as a group rank. On every other
    rank `output` is neither read nor written, and may be None.
    """
    call = _Call("reduce", output, input, group, config, workspace, strict)
    return call.issue(async_op, op=op, root=call.root(dst, group_dst, "dst"))


def broadcast(
    output: Tensor,
    input: Tensor | None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    group_src: int | None = None,
    strict: bool = False,
) -> dist.Work | None:
    """Copies the `input` of one rank to the `output` of every rank, its own included.

    `src` is that rank as a global rank; `group_src`, in its place, as a group rank. On every other
    rank `input` is not looked at, and may be None. Otherwise as `all_reduce`.
    """
    call = _Call("broadcast", output, input, group, config, workspace, strict)
    return call.issue(async_op, root=call.root(src, group_src, "src"))


def all_gather(
    output: Tensor,
    input: Tensor,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    strict: bool = False,
) -> dist.Work | None:
    """Every rank's `input`, one after the other by group rank, in `output` on every rank.

    `output` has world_size times as many elements as `input`, which may be this rank's part of it.
    Otherwise as `all_reduce`, and as ``torch.distributed.all_gather_into_tensor``.
    """
    return _Call("all_gather", output, input, group, config, workspace, strict).issue(async_op)


def reduce_scatter(
    output: Tensor,
    input: Tensor,
    op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    strict: bool = False,
) -> dist.Work | None:
    """Combines every rank's `input` and gives each rank its share of the result.

    `input` has world_size times as many elements as `output`, which may be this rank's part of it.
    Otherwise as `all_reduce`, and as ``torch.distributed.reduce_scatter_tensor``.
    """
    call = _Call("reduce_scatter", output, input, group, config, workspace, strict)
    return call.issue(async_op, op=op)


def all_to_all(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    config: Config | None = None,
    workspace: Workspace | None = None,
    *,
    strict: bool = False,
) -> dist.Work | None:
    """Sends a share of `input` to every rank, and puts theirs one after the other into `output`.

    Shares are entries of dimension 0: equal ones, or as many as the split sizes say, by group rank.
    "copy_engine" needs equal shares. Otherwise as `all_reduce`, and as
    ``torch.distributed.all_to_all_single``.
    """
    call = _Call("all_to_all", output, input, group, config, workspace, strict)
    return call.issue(async_op, splits=(output_split_sizes, input_split_sizes))


def device_barrier(group: Any = None, device: torch.device | str | None = None) -> None:
    """Nothing that comes after it begins, on any rank, before every rank has come to it.

    Collective over `group`. On a GPU it is an operation of the current stream: the host goes on at
    once, and it can be captured once the group is warm. On the CPU it is the group's barrier.

    Args:
        group: a ProcessGroup with the backend symm, or its name; None for the default group.
        device: of the barrier, of one kind on every rank. None: the GPU that the group uses or is
            bound to on this rank; the CPU where there is none.
    """
    caller = "device_barrier"
    process_group = _groups.resolve(group, caller)
    if device is not None:
        place = with_index(device)
        backend = workspace.backend_of(process_group, place, caller, "device")
    else:
        place = None
        backend = workspace.symm_backend(process_group, torch.device("cuda"))
        if backend is None:
            cpu = torch.device("cpu")
            backend = workspace.backend_of(process_group, cpu, caller, "group")
    load().device_barrier(backend, place)


# What is not looked at on ranks other than the root.
_OPTIONAL = {"reduce": "output", "broadcast": "input"}


@dataclasses.dataclass
class _Call:
    """One call: its arguments, checked and put where they have to stand."""

    name: str
    output: Tensor | None
    input: Tensor | None
    given_group: Any
    config: Config | None
    workspace: Workspace | None
    strict: bool

    def __post_init__(self) -> None:
        self.group = _groups.resolve(self.given_group, self.name)
        for argument in ("output", "input"):
            tensor = getattr(self, argument)
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"{self.name}: {argument}: expected a torch.Tensor, got a "
                    f"{type(tensor).__name__}"
                )
        if self.config is not None and not isinstance(self.config, Config):
            raise TypeError(
                f"{self.name}: config: expected a ccl.Config or None, got a "
                f"{type(self.config).__name__}"
            )
        if self.group in dist.distributed_c10d._world.pg_coalesce_state:
            raise NotImplementedError(
                f"{self.name}: the calls of this module cannot be part of a coalescing block"
            )

    def root(self, global_rank: int | None, group_rank: int | None, argument: str) -> int:
        """The group rank that is meant."""
        if (global_rank is None) == (group_rank is None):
            given = "both" if group_rank is not None else "neither"
            raise ValueError(
                f"{self.name}: {argument}: expected {argument}, a global rank, or "
                f"group_{argument}, a rank of the group, got {given}"
            )
        if group_rank is not None:
            return group_rank
        ranks = _groups.global_ranks(self.group)
        if global_rank not in ranks:
            raise ValueError(
                f"{self.name}: {argument}: expected a global rank of the group, one of {ranks}, "
                f"got {global_rank}"
            )
        return ranks.index(global_rank)

    def issue(
        self,
        async_op: bool,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        root: int = 0,
        splits: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    ) -> dist.Work | None:
        if not isinstance(op, (ReduceOp, ReduceOp.RedOpType)):
            raise TypeError(
                f"{self.name}: op: expected a torch.distributed.ReduceOp, got a {type(op).__name__}"
            )
        optional = None if self.group.rank() == root else _OPTIONAL.get(self.name)
        for argument in ("output", "input"):
            if argument == optional:
                setattr(self, argument, None)
            elif getattr(self, argument) is None:
                raise TypeError(f"{self.name}: {argument}: expected a torch.Tensor, got None")
        first = "output" if self.input is None else "input"
        device = getattr(self, first).device
        backend = workspace.backend_of(self.group, device, self.name, first)
        stages = self._stages(backend, device)
        work = load().run_configured(
            backend,
            self.name,
            self.output,
            self.input,
            op,
            root,
            [int(size) for size in splits[0] or ()],
            [int(size) for size in splits[1] or ()],
            AUTO if self.config is None else self.config.request(),
            *stages,
            async_op,
        )
        return work if async_op else None

    def _stages(self, backend: Any, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Where the input and where the output is to be staged; None: nowhere by this call."""
        if self.workspace is not None:
            given = (self.input, self.output)
            largest = max(tensor.nbytes for tensor in given if tensor is not None)
            workspace.check(self.workspace, self.group, device, largest, self.name)
        stages = {"input": None, "output": None}
        if self.workspace is not None and self.input is not None:
            if not load().is_symmetric(self.input, self.group.group_name):
                stages["input"] = self.workspace._stages.input
        needed = self._must_be_symmetric(device)
        if self.strict:
            for argument in needed:
                if not load().device_knows(backend, getattr(self, argument)):
                    raise ValueError(self._refusal(argument))
        elif needed:
            # Whether a tensor is symmetric is a fact of one rank, and where peers reach is one of
            # all. So without the guarantee of strict, all ranks stage.
            if self.workspace is not None:
                place = self.workspace._stages
            else:
                largest = max(getattr(self, argument).nbytes for argument in needed)
                place = workspace.own(self.group, device, largest, self.name)
            stages.update({argument: getattr(place, argument) for argument in needed})
        return stages["input"], stages["output"]

    def _must_be_symmetric(self, device: torch.device) -> tuple[str, ...]:
        """The arguments; none where there is nothing in them or nobody else."""
        if self.config is None or self.group.size() == 1:
            return ()
        row = placement.find(self.name, self.config.algorithm, device.type)
        arguments = () if row is None else row.must_be_symmetric
        return tuple(name for name in arguments if getattr(self, name).numel())

    def _refusal(self, argument: str) -> str:
        does = "write" if argument == "output" else "read"
        return (
            f"{self.name}: {argument}: the algorithm {self.config.algorithm!r} has peers {does} "
            f"the {argument}, so with strict=True it must be in symmetric memory of group "
            f"{self.group.group_name!r}, got a tensor in other memory on "
            f"{getattr(self, argument).device}; allocate it by torch_symm.empty() and pass what "
            "torch_symm.as_symmetric(tensor, group) returns, or leave strict out: it is then staged"
            f"{' and copied back' if argument == 'output' else ''}"
        )
