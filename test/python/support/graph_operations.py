"""Collectives on tensors that stay where they are, as a CUDA graph needs them: each can be filled
with new data, called, and checked."""

import dataclasses
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import model
from harness import WORLD_SIZE


def content(rank: int, part: int, replay: int, count: int) -> torch.Tensor:
    """Whole numbers below 1009, so that any order of addition is exact."""
    index = torch.arange(count, dtype=torch.int64)
    return ((index * 7 + rank * 131 + part * 53 + replay * 17) % 1009).to(torch.float32)


@dataclasses.dataclass
class Operation:
    """A call on tensors that stay where they are. `inputs`: (tensor, part) filled with content();
    `expected(replay)`: what `outputs` must hold then."""

    call: Callable[[], None]
    inputs: list
    outputs: list
    expected: Callable[[int], list]

    def fill(self, rank: int, replay: int) -> None:
        for tensor in self.outputs:
            tensor.fill_(-77.0)
        for tensor, part in self.inputs:
            tensor.copy_(content(rank, part, replay, tensor.numel()))

    def check(self, what: str, got: list, replay: int) -> list[str]:
        return [
            line
            for index, (tensor, expected) in enumerate(zip(got, self.expected(replay), strict=True))
            for line in model.mismatch(f"{what} replay {replay} [{index}]", tensor, expected)
        ]


def buffer(count: int) -> torch.Tensor:
    return torch.full((count,), -77.0, device="cuda")


class Operations:
    """Makes operations of `count` elements over `group`, whose ranks are all ranks in order."""

    def __init__(self, rank: int, count: int, group=None):
        self.rank, self.count, self.group = rank, count, group

    def contents(self, replay, part=0, count=None):
        count = self.count if count is None else count
        return [content(r, part, replay, count) for r in range(WORLD_SIZE)]

    def total(self, replay, part=0, count=None):
        return model.reduced(self.contents(replay, part, count), "SUM")

    def part(self, whole):
        return whole[self.rank * self.count : (self.rank + 1) * self.count]

    def all_reduce(self):
        t = buffer(self.count)
        return Operation(
            lambda: dist.all_reduce(t, group=self.group), [(t, 0)], [t], lambda i: [self.total(i)]
        )

    def all_reduce_async(self):
        t = buffer(self.count)
        return Operation(
            lambda: dist.all_reduce(t, group=self.group, async_op=True).wait(),
            [(t, 0)],
            [t],
            lambda i: [self.total(i)],
        )

    def coalesced(self):
        tensors = [buffer(self.count), buffer(self.count // 2 + 1)]

        def call():
            with _coalescing_manager(self.group):
                for tensor in tensors:
                    dist.all_reduce(tensor, group=self.group)

        return Operation(
            call,
            [(t, part) for part, t in enumerate(tensors)],
            tensors,
            lambda i: [self.total(i, part, t.numel()) for part, t in enumerate(tensors)],
        )

    def reduce(self):
        t = buffer(self.count)
        outputs = [t] if self.rank == 1 else []
        return Operation(
            lambda: dist.reduce(t, 1, group=self.group),
            [(t, 0)],
            outputs,
            lambda i: [self.total(i) for _ in outputs],
        )

    def broadcast(self):
        t = buffer(self.count)
        inputs = [(t, 0)] if self.rank == 1 else []
        return Operation(
            lambda: dist.broadcast(t, 1, group=self.group),
            inputs,
            [t],
            lambda i: [content(1, 0, i, self.count)],
        )

    def all_gather(self):
        mine, out = buffer(self.count), [buffer(self.count) for _ in range(WORLD_SIZE)]
        return Operation(
            lambda: dist.all_gather(out, mine, group=self.group), [(mine, 0)], out, self.contents
        )

    def all_gather_into_tensor(self):
        mine, out = buffer(self.count), buffer(self.count * WORLD_SIZE)
        return Operation(
            lambda: dist.all_gather_into_tensor(out, mine, group=self.group),
            [(mine, 0)],
            [out],
            lambda i: [torch.cat(self.contents(i))],
        )

    def gather(self):
        mine = buffer(self.count)
        out = [buffer(self.count) for _ in range(WORLD_SIZE)] if self.rank == 1 else []
        return Operation(
            lambda: dist.gather(mine, out or None, 1, group=self.group),
            [(mine, 0)],
            out,
            lambda i: self.contents(i) if out else [],
        )

    def scatter(self):
        out = buffer(self.count)
        parts = [buffer(self.count) for _ in range(WORLD_SIZE)] if self.rank == 1 else []
        return Operation(
            lambda: dist.scatter(out, parts or None, 1, group=self.group),
            [(t, part) for part, t in enumerate(parts)],
            [out],
            lambda i: [content(1, self.rank, i, self.count)],
        )

    def reduce_scatter(self):
        out, parts = buffer(self.count), [buffer(self.count) for _ in range(WORLD_SIZE)]
        return Operation(
            lambda: dist.reduce_scatter(out, parts, group=self.group),
            [(t, part) for part, t in enumerate(parts)],
            [out],
            lambda i: [self.total(i, self.rank)],
        )

    def reduce_scatter_tensor(self):
        out, whole = buffer(self.count), buffer(self.count * WORLD_SIZE)
        return Operation(
            lambda: dist.reduce_scatter_tensor(out, whole, group=self.group),
            [(whole, 0)],
            [out],
            lambda i: [self.part(self.total(i, 0, self.count * WORLD_SIZE))],
        )

    def all_to_all(self):
        out = [buffer(self.count) for _ in range(WORLD_SIZE)]
        parts = [buffer(self.count) for _ in range(WORLD_SIZE)]
        return Operation(
            lambda: dist.all_to_all(out, parts, group=self.group),
            [(t, part) for part, t in enumerate(parts)],
            out,
            lambda i: self.contents(i, self.rank),
        )

    def all_to_all_single(self):
        out, whole = buffer(self.count * WORLD_SIZE), buffer(self.count * WORLD_SIZE)
        return Operation(
            lambda: dist.all_to_all_single(out, whole, group=self.group),
            [(whole, 0)],
            [out],
            lambda i: [torch.cat([self.part(w) for w in self.contents(i, 0, whole.numel())])],
        )

    def ring(self):
        """A message to the right and one to the left."""
        right, left = (self.rank + 1) % WORLD_SIZE, (self.rank - 1) % WORLD_SIZE
        to_right, to_left = buffer(self.count), buffer(self.count)
        from_left, from_right = buffer(self.count), buffer(self.count)

        def call():
            # With two ranks left is right, and messages of one pair match in order.
            operations = [
                dist.P2POp(dist.isend, to_right, right, self.group),
                dist.P2POp(dist.isend, to_left, left, self.group),
                dist.P2POp(dist.irecv, from_left, left, self.group),
                dist.P2POp(dist.irecv, from_right, right, self.group),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        return Operation(
            call,
            [(to_right, 1), (to_left, 2)],
            [from_left, from_right],
            lambda i: [content(left, 1, i, self.count), content(right, 2, i, self.count)],
        )

    def batch_with_oneself(self):
        """Two messages to this rank itself, received in the other order, beside a ring."""
        right, left = (self.rank + 1) % WORLD_SIZE, (self.rank - 1) % WORLD_SIZE
        first, second, to_right = buffer(self.count), buffer(self.count + 1), buffer(self.count)
        got_first, got_second = buffer(self.count), buffer(self.count + 1)
        from_left = buffer(self.count)

        def call():
            operations = [
                dist.P2POp(dist.irecv, got_second, self.rank, self.group, 2),
                dist.P2POp(dist.isend, first, self.rank, self.group, 1),
                dist.P2POp(dist.isend, to_right, right, self.group, 1),
                dist.P2POp(dist.isend, second, self.rank, self.group, 2),
                dist.P2POp(dist.irecv, from_left, left, self.group, 1),
                dist.P2POp(dist.irecv, got_first, self.rank, self.group, 1),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        return Operation(
            call,
            [(first, 1), (second, 2), (to_right, 3)],
            [got_first, got_second, from_left],
            lambda i: [
                content(self.rank, 1, i, self.count),
                content(self.rank, 2, i, self.count + 1),
                content(left, 3, i, self.count),
            ],
        )

    def send_recv(self):
        """Odd ranks send to the even rank before them."""
        t = buffer(self.count)
        if self.rank % 2:
            return Operation(
                lambda: dist.send(t, self.rank - 1, group=self.group), [(t, 3)], [], lambda i: []
            )
        return Operation(
            lambda: dist.recv(t, self.rank + 1, group=self.group),
            [],
            [t],
            lambda i: [content(self.rank + 1, 3, i, self.count)],
        )


NAMES = [name for name, member in vars(Operations).items() if callable(member)]
NAMES = [n for n in NAMES if n not in ("__init__", "contents", "total", "part")]


def captured(call, stream=None, mode="global") -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        call()
    return graph
