"""One collective call on one rank: its inputs, its poisoned outputs, and what was wrong with it.

Outputs lie inside a larger buffer whose margins must stay as they are; inputs that a collective
may not change are compared with a copy afterwards.
"""

import dataclasses

import torch

import model
from harness import DEVICE, IS_SYMM

MARGIN = 67  # elements on either side of a buffer; odd, so that views are unaligned


@dataclasses.dataclass
class Call:
    """One collective call on this rank and what was found wrong with it."""

    group: object
    ranks: list[int]  # global ranks by group rank
    me: int  # group rank
    dtype: torch.dtype = torch.float32
    op: str = "SUM"
    count: int = 1027
    aligned: bool = False
    async_op: bool = False
    salt: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    _margins: list = dataclasses.field(default_factory=list)
    _unchanged: list = dataclasses.field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def root(self) -> int:
        """Group rank; moves with the salt so that every rank has its turn."""
        return self.salt % self.size

    @property
    def global_root(self) -> int:
        return self.ranks[self.root]

    def content(self, group_rank: int, count: int | None = None, part: int = 0) -> torch.Tensor:
        """What `group_rank` brings; `part` tells several tensors of one rank apart."""
        # Keyed by the global rank, so that taking a group rank for a global one shows.
        key = self.ranks[group_rank] + 64 * part
        return model.make_input(
            self.dtype, self.count if count is None else count, key, self.salt, self.op
        )

    def expected_reduction(self, count: int | None = None, part: int = 0) -> torch.Tensor:
        return model.reduced([self.content(r, count, part) for r in range(self.size)], self.op)

    def torch_op(self):
        tensor_factor = self.dtype if self.salt % 2 and not self.dtype.is_complex else None
        if tensor_factor is not None and self.dtype not in model.FLOATS:
            tensor_factor = None
        return model.reduce_op(self.op, self.me, tensor_factor)

    def source(self, content: torch.Tensor) -> torch.Tensor:
        """An input that the collective must leave as it is."""
        tensor = self.inout(content)
        self._unchanged.append((tensor, content.clone()))
        return tensor

    def inout(self, content: torch.Tensor) -> torch.Tensor:
        tensor = self.target(content.numel())
        tensor.copy_(content)
        return tensor

    def target(self, count: int | None = None) -> torch.Tensor:
        """A poisoned output."""
        count = self.count if count is None else count
        margin = 64 if self.aligned else MARGIN
        size = self.dtype.itemsize
        total = (count + 2 * margin) * size
        base = torch.full((total,), 0xA5, dtype=torch.uint8, device=DEVICE)
        if self.dtype == torch.bool:
            base.fill_(1)
        self._margins.append((base, margin * size, count * size))
        return base.view(self.dtype)[margin : margin + count]

    def run(self, function, *args, **kwargs) -> None:
        work = function(*args, group=self.group, async_op=self.async_op, **kwargs)
        if self.async_op:
            work.wait()

    def check(self, what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        self.problems += model.mismatch(what, got, expected, exact=IS_SYMM)

    def finish(self) -> list[str]:
        """Checks margins and inputs; all problems, each with the parameters of the call."""
        for memory, before, inside in self._margins:
            base = memory.cpu()
            untouched = torch.cat([base[:before], base[before + inside :]])
            if not bool((untouched == (1 if self.dtype == torch.bool else 0xA5)).all()):
                self.problems.append("wrote outside a buffer")
        for tensor, copy in self._unchanged:
            self.problems += model.mismatch("an input was changed", tensor, copy)
        where = (
            f"ranks {self.ranks} {model.name(self.dtype)} {self.op} count {self.count} "
            f"aligned {self.aligned} async {self.async_op} salt {self.salt}"
        )
        return [f"{where}: {problem}" for problem in self.problems]
