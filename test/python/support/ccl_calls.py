"""Calls of torch_symm.ccl on one rank, and what its table should say; for test_ccl*.py."""

import torch

from call import Call
from harness import DEVICE, synchronize

LEAST_CHUNK = 16384  # of a config on the CPU
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")

# What peers read and write, and what must be symmetric, independently of what the library says.
NONE, READ = ((), (), ()), (("input",), (), ())
WRITTEN = ((), ("output",), ("output",))
NEEDS_INPUT = (("input",), (), ("input",))
NEEDS_BOTH = (("input",), ("output",), ("input", "output"))
CPU = {
    "all_reduce": {"one_shot": READ, "two_shot": READ, "ring": NONE},
    "reduce": {"one_shot": READ, "two_shot": READ},
    "broadcast": {"one_shot": READ, "pipelined": READ},
    "all_gather": {"one_shot": READ, "pipelined": READ},
    "reduce_scatter": {"one_shot": READ, "pipelined": READ},
    "all_to_all": {"one_shot": READ, "pipelined": READ},
}
CUDA = {
    "all_reduce": {
        "ll": NONE,
        "ll_two_shot": NONE,
        "bulk": NONE,
        "multimem": NEEDS_BOTH,
    },
    "reduce": {"ll": NONE, "bulk": NONE},
    "broadcast": {
        "ll": NONE,
        "bulk": NONE,
        "copy_engine": WRITTEN,
        "multimem": WRITTEN,
    },
    "all_gather": {
        "ll": NONE,
        "bulk": NONE,
        "copy_engine": WRITTEN,
        "multimem": WRITTEN,
    },
    "reduce_scatter": {
        "ll": NONE,
        "bulk": NONE,
        "multimem": NEEDS_INPUT,
    },
    "all_to_all": {"pipelined": NONE, "copy_engine": WRITTEN},
}
TABLE = {"cpu": CPU, "cuda": CUDA}
# Multicast is never switched on in tests.
PAIRS = [
    (name, algorithm)
    for name, row in TABLE[DEVICE].items()
    for algorithm in row
    if algorithm != "multimem"
]


class Tensors(Call):
    """A call whose tensors may stand in symmetric memory of the group. All ranks allocate alike."""

    def symmetric_target(self, count):
        import torch_symm

        margin = 64
        memory = torch_symm.empty(
            (count + 2 * margin) * self.dtype.itemsize, dtype=torch.uint8, device=DEVICE
        )
        memory.fill_(1 if self.dtype == torch.bool else 0xA5)
        memory = torch_symm.as_symmetric(memory, self.group)
        self._margins.append((memory, margin * self.dtype.itemsize, count * self.dtype.itemsize))
        return memory.view(self.dtype)[margin : margin + count]

    def place(self, count, symmetric):
        return self.symmetric_target(count) if symmetric else self.target(count)

    def read_only(self, content, symmetric):
        tensor = self.place(content.numel(), symmetric)
        tensor.copy_(content)
        self._unchanged.append((tensor, content.clone()))
        return tensor


def carry_out(c, name, config, symmetric_in=False, symmetric_out=False, in_place=False, **options):
    """One call of ccl; what is wrong with it is noted in `c`."""
    from torch_symm import ccl

    size, n, me = c.size, c.count, c.me
    share = slice(me * n, (me + 1) * n)
    whole_in = n * size if name in ("reduce_scatter", "all_to_all") else n
    whole_out = n * size if name in ("all_gather", "all_to_all") else n
    arguments = {"group": c.group, "async_op": c.async_op, "config": config, **options}
    if name in REDUCTIONS:
        arguments["op"] = c.torch_op()
    if name in ("reduce", "broadcast"):
        arguments["dst" if name == "reduce" else "src"] = c.global_root
    mine = c.content(me, whole_in)
    if in_place:
        # One tensor, or the smaller one is this rank's part of the other.
        large = c.place(max(whole_in, whole_out), symmetric_in)
        if name == "all_gather":
            output, given = large, large[share]
            given.copy_(mine)
        elif name == "reduce_scatter":
            large.copy_(mine)
            output, given = large[share], large
        else:
            large.copy_(mine)
            output = given = large
    else:
        given = c.read_only(mine, symmetric_in)
        output = c.place(whole_out, symmetric_out)
    before = output.clone()
    if name == "broadcast" and me != c.root and not in_place:
        given = None
    work = getattr(ccl, name)(output, given, **arguments)
    if (work is not None) != c.async_op:
        c.problems.append(f"{name} returned {work} with async_op={c.async_op}")
    if work is not None:
        work.wait()
    synchronize()
    if name == "reduce" and me != c.root:
        c.check(f"{name}: the output of another rank than dst", output, before)
        return
    c.check(name, output, expected(c, name, share, whole_in))


def expected(c, name, share, whole_in):
    if name == "broadcast":
        return c.content(c.root)
    if name in REDUCTIONS:
        whole = c.expected_reduction(whole_in)
        return whole[share] if name == "reduce_scatter" else whole
    if name == "all_gather":
        return torch.cat([c.content(r) for r in range(c.size)])
    return torch.cat([c.content(r, whole_in)[share] for r in range(c.size)])
