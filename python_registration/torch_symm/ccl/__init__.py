"""Collectives with an output and an input, and with a plan of each call's own.

They are the collectives of a process group whose backend is symm: the same kernels, the same bits,
the same order of calls. What they add to ``torch.distributed``:

* output and input are two arguments, in torch's order, and may be one tensor;
* `Config` chooses the algorithm of one call and how it is launched;
* `placements` says, for every algorithm, which tensor other ranks read or write in place;
  ``strict=True`` refuses an output that would have to be staged for that;
* `Workspace` is memory that is staged in, made once and used by any number of calls.

::

    from torch_symm import ccl

    ccl.all_reduce(total, gradient, config=ccl.Config(algorithm="two_shot"))
"""

from torch_symm.ccl.collectives import (
    ReduceOp,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    device_barrier,
    reduce,
    reduce_scatter,
)
from torch_symm.ccl.config import Config
from torch_symm.ccl.placement import Placement, algorithms, placements
from torch_symm.ccl.workspace import Workspace, make_workspace

__all__ = [
    "Config",
    "Placement",
    "ReduceOp",
    "Workspace",
    "algorithms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "device_barrier",
    "make_workspace",
    "placements",
    "reduce",
    "reduce_scatter",
]
