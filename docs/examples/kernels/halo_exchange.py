"""Heat on a plate whose rows lie on the ranks: before each step neighbours exchange the rows at
their edge, inside one kernel for all steps."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import torch_symm
import torch_symm.triton as symm
from compare import difference, random, run


@triton.jit
def heat_kernel(plates, ready, steps, ctx, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """plates [2, ROWS + 2, COLUMNS]: what a step reads and what it writes; the first and the last
    row are the neighbours'. ready [2]: the step for which the upper and lower neighbour has put."""
    rank, ranks = symm.my_rank(ctx), symm.world_size(ctx)
    before = tl.load(ready + 2)  # the steps of earlier calls
    column = tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)[:, None] + 1
    inner = (column > 0) & (column < COLUMNS - 1)
    for step in range(steps):
        old = plates + (step % 2) * (ROWS + 2) * COLUMNS
        new = plates + ((step + 1) % 2) * (ROWS + 2) * COLUMNS
        turn = before + step + 1
        if rank > 0:
            top = tl.load(old + COLUMNS + column)
            symm.store(old + (ROWS + 1) * COLUMNS + column, top, rank - 1, ctx)
            symm.signal_set(ready + 1, turn, rank - 1, ctx)
        if rank < ranks - 1:
            bottom = tl.load(old + ROWS * COLUMNS + column)
            symm.store(old + column, bottom, rank + 1, ctx)
            symm.signal_set(ready, turn, rank + 1, ctx)
        if rank > 0:
            symm.wait_until(ready, "ge", turn, ctx, source=rank - 1)
        if rank < ranks - 1:
            symm.wait_until(ready + 1, "ge", turn, ctx, source=rank + 1)
        # A neighbour that is a step ahead puts into the other plate, and cannot be two ahead: it
        # waits for the rows that this rank sends when it has read these.
        place = row * COLUMNS + column[None, :]
        sides = tl.load(old + place - 1, mask=inner[None, :], other=0.0)
        sides += tl.load(old + place + 1, mask=inner[None, :], other=0.0)
        sides += tl.load(old + place - COLUMNS) + tl.load(old + place + COLUMNS)
        middle = tl.load(old + place)
        heated = tl.where(inner[None, :], middle + 0.1 * (sides - 4 * middle), middle)
        tl.store(new + place, heated)
        tl.debug_barrier()  # threads of this program read each other's rows
    tl.store(ready + 2, before + steps)
    symm.barrier(ctx)  # nobody puts or reads any more


def by_all_gather(plate: torch.Tensor, steps: int) -> torch.Tensor:
    """The same: every rank computes the whole plate. Rows beyond it are cold."""
    rows, columns = plate.shape
    whole = plate.new_empty(dist.get_world_size() * rows, columns)
    dist.all_gather_into_tensor(whole, plate)
    for _ in range(steps):
        padded = torch.nn.functional.pad(whole, (0, 0, 1, 1))
        sides = padded[:-2, 1:-1] + padded[2:, 1:-1] + whole[:, :-2] + whole[:, 2:]
        whole[:, 1:-1] = whole[:, 1:-1] + 0.1 * (sides - 4 * whole[:, 1:-1])
    return whole[dist.get_rank() * rows :][:rows]


def example(device: str) -> float:
    """Halo exchange beside dist.all_gather_into_tensor of the whole."""
    rows, columns, steps, distance = 8, 32, 4, 0.0
    plates = torch_symm.zeros(2, rows + 2, columns, dtype=torch.float32, device=device)
    ready = torch_symm.zeros(3, dtype=torch.int32, device=device)
    ctx = symm.context(plates, ready)
    for turn in range(2):
        plate = random(rows, columns, device=device, seed=100 * turn + dist.get_rank())
        expected = by_all_gather(plate, steps)
        plates.fill_(0)
        plates[0, 1:-1] = plate
        dist.barrier()  # the plate is there before a neighbour puts into it
        heat_kernel[(1,)](plates, ready, steps, ctx, ROWS=rows, COLUMNS=columns)
        distance = max(distance, difference(plates[steps % 2, 1:-1], expected))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
