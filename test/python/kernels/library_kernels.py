"""Kernels over torch_symm.triton for its tests. Imported by ranks alone: on the CPU they have
Triton's interpreter (conftest.py), of which the test process must stay free."""

import triton
import triton.language as tl

import torch_symm.triton as symm


@triton.jit
def ring_kernel(box, flag, source, count, turn, ctx, BLOCK: tl.constexpr):
    """Every rank puts `source` into its right neighbour's box and waits for its left one's."""
    rank = symm.my_rank(ctx)
    ranks = symm.world_size(ctx)
    right = (rank + 1) % ranks
    left = (rank + ranks - 1) % ranks
    index = tl.arange(0, BLOCK)
    symm.put_signal(box + index, source + index, flag, turn, right, ctx, mask=index < count)
    symm.wait_until(flag, "eq", turn, ctx, source=left)


@triton.jit
def relay_kernel(box, flag, turns, source, out, count, ctx, BLOCK: tl.constexpr):
    """A ring of puts that counts its turns itself, so that each launch has the same arguments."""
    rank = symm.my_rank(ctx)
    ranks = symm.world_size(ctx)
    right = (rank + 1) % ranks
    left = (rank + ranks - 1) % ranks
    index = tl.arange(0, BLOCK)
    inside = index < count
    turn = tl.load(turns) + 1
    symm.put_signal(box + index, source + index, flag, 1, right, ctx, mask=inside, OPERATION="add")
    symm.wait_until(flag, "eq", turn, ctx, source=left)
    tl.store(out + index, tl.load(box + index, mask=inside), mask=inside)
    tl.store(turns, turn)
    symm.barrier(ctx)  # every box is read


@triton.jit
def exchange_kernel(box, source, out, count, ctx, WAY: tl.constexpr, BLOCK: tl.constexpr):
    """All to all, row by row: every rank ends with what every rank's `source` says to it."""
    rank = symm.my_rank(ctx)
    index = tl.arange(0, BLOCK)
    inside = index < count
    if WAY == "store":
        for peer in range(symm.world_size(ctx)):
            value = tl.load(source + peer * count + index, mask=inside)
            symm.store(box + rank * count + index, value, peer, ctx, mask=inside)
        symm.barrier(ctx)
        for peer in range(symm.world_size(ctx)):
            value = tl.load(box + peer * count + index, mask=inside)
            tl.store(out + peer * count + index, value, mask=inside)
    else:
        for peer in range(symm.world_size(ctx)):
            value = tl.load(source + peer * count + index, mask=inside)
            tl.store(box + peer * count + index, value, mask=inside)
        symm.barrier(ctx)
        for peer in range(symm.world_size(ctx)):
            theirs = box + rank * count + index
            if WAY == "get":
                symm.get(out + peer * count + index, theirs, peer, ctx, mask=inside)
            else:
                value = symm.load(theirs, peer, ctx, mask=inside, other=0)
                tl.store(out + peer * count + index, value, mask=inside)
    symm.barrier(ctx)


@triton.jit
def count_kernel(words, old, repeats, ctx):
    """Every rank adds to rank 0's first word again and again, and counts by compare-and-swap in
    the second one."""
    for turn in range(repeats):
        tl.store(old + turn, symm.atomic_add(words, 1, 0, ctx, SEM="relaxed"))
        # An atomic's result is the same for all threads of a program; a load's may not be.
        seen = symm.atomic_add(words + 1, 0, 0, ctx, SEM="relaxed")
        found = symm.atomic_cas(words + 1, seen, seen + 1, 0, ctx)
        while found != seen:
            seen = found
            found = symm.atomic_cas(words + 1, seen, seen + 1, 0, ctx)
    symm.barrier(ctx)


@triton.jit
def atomics_kernel(words, out, ctx):
    """One of each on the next rank's words; the old values go to `out`."""
    rank = symm.my_rank(ctx)
    peer = (rank + 1) % symm.world_size(ctx)
    tl.store(out + 0, symm.atomic_add(words + 0, 5, peer, ctx))
    tl.store(out + 1, symm.atomic_exch(words + 1, 100 + rank, peer, ctx, SEM="release"))
    tl.store(out + 2, symm.atomic_min(words + 2, -7, peer, ctx, SEM="acquire"))
    tl.store(out + 3, symm.atomic_max(words + 3, 70, peer, ctx, SEM="relaxed"))
    tl.store(out + 4, symm.atomic_and(words + 4, 12, peer, ctx))
    tl.store(out + 5, symm.atomic_or(words + 5, 12, peer, ctx))
    tl.store(out + 6, symm.atomic_cas(words + 6, 16, 1000, peer, ctx))
    tl.store(out + 7, symm.atomic_cas(words + 7, 16, 1000, peer, ctx))
    symm.barrier(ctx)


@triton.jit
def compare_kernel(word, other, out, ctx):
    """Rank 0 sets rank 1's word to 3, 5, 2 and so on; rank 1 waits by each comparison in turn and
    tells when it has."""
    if symm.my_rank(ctx) == 0:
        for turn in range(1, 7):
            value = tl.where(turn == 5, -4, tl.where(turn == 6, -9, turn))
            symm.signal_set(word, value, 1, ctx)
            symm.wait_until(other, "eq", turn, ctx, source=1)
    elif symm.my_rank(ctx) == 1:
        tl.store(out + 0, symm.wait_until(word, "eq", 1, ctx, source=0))
        symm.signal_set(other, 1, 0, ctx)
        tl.store(out + 1, symm.wait_until(word, "ne", 1, ctx, source=0))
        symm.signal_set(other, 2, 0, ctx)
        tl.store(out + 2, symm.wait_until(word, "gt", 2, ctx, source=0))
        symm.signal_set(other, 3, 0, ctx)
        tl.store(out + 3, symm.wait_until(word, "ge", 4, ctx, source=0))
        symm.signal_set(other, 4, 0, ctx)
        tl.store(out + 4, symm.wait_until(word, "lt", 0, ctx, source=0))
        symm.signal_set(other, 5, 0, ctx)
        tl.store(out + 5, symm.wait_until(word, "le", -9, ctx, source=0))
        symm.signal_set(other, 6, 0, ctx)
    symm.barrier(ctx)


@triton.jit
def gather_sum_kernel(box, count, value, ctx, BLOCK: tl.constexpr):
    """Every rank stores a block into its row at rank 0 and adds one to a count there; rank 0 waits
    for all and sums the rows into its own row 0."""
    rank = symm.my_rank(ctx)
    index = tl.arange(0, BLOCK)
    symm.store(box + (rank + 1) * BLOCK + index, value + index, 0, ctx)
    symm.signal_add(count, 1, 0, ctx)
    if rank == 0:
        symm.wait_until(count, "ge", symm.world_size(ctx), ctx)
        total = tl.zeros((BLOCK,), dtype=tl.int32)
        for peer in range(symm.world_size(ctx)):
            total += tl.load(box + (peer + 1) * BLOCK + index)
        tl.store(box + index, total)
    symm.barrier(ctx)


@triton.jit
def two_groups_kernel(tile, world, part, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A 2-D block to the next rank of the default group, another to the next one of the subgroup:
    one kernel, two contexts, one tensor."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    block = row * COLUMNS + column
    next_of_world = (symm.my_rank(world) + 1) % symm.world_size(world)
    next_of_part = (symm.my_rank(part) + 1) % symm.world_size(part)
    symm.store(tile + block, 1000 * symm.my_rank(world) + block, next_of_world, world)
    symm.store(tile + ROWS * COLUMNS + block, 1000 * symm.my_rank(part) + block, next_of_part, part)
    symm.fence()
    symm.barrier(world)
    symm.barrier(part)


@triton.jit
def programs_kernel(box, rounds, ctx):
    """Each program meets its namesakes of the other ranks, many times, over a word of its own."""
    program = tl.program_id(0)
    rank = symm.my_rank(ctx)
    ranks = symm.world_size(ctx)
    for turn in range(rounds):
        symm.store(box + program, turn * 100 + rank, (rank + 1) % ranks, ctx)
        symm.barrier(ctx, program)
        left = (rank + ranks - 1) % ranks
        wrong = tl.load(box + program) != turn * 100 + left
        tl.store(box + 64 + program, tl.load(box + 64 + program) + wrong.to(tl.int32))
        symm.barrier(ctx, program)


@triton.jit
def message_kernel(data, flag, wrong, rounds, ctx, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Rank 0 sends block after block, rank 1 answers each: a flag that outran its data shows. What
    orders them is the signal, or a fence before a word without an order."""
    index = tl.arange(0, BLOCK)
    bad = tl.zeros((BLOCK,), dtype=tl.int32)
    for turn in range(1, rounds + 1):
        if symm.my_rank(ctx) == 0:
            symm.store(data + index, turn + index, 1, ctx)
            if ORDER == "signal":
                symm.signal_set(flag, turn, 1, ctx)
            else:
                if ORDER == "fence":
                    symm.fence()
                    symm.atomic_exch(flag, turn, 1, ctx, SEM="relaxed")
                else:
                    symm.quiet()
                    symm.signal_set(flag, turn, 1, ctx, SEM="relaxed")
            symm.wait_until(flag, "eq", turn, ctx, source=1)
        else:
            symm.wait_until(flag, "eq", turn, ctx, source=0)
            bad += (tl.load(data + index) != turn + index).to(tl.int32)
            symm.signal_set(flag, turn, 0, ctx)
    tl.store(wrong, tl.sum(bad))


@triton.jit
def wait_kernel(flag, out, ctx, source):
    """Waits for what nobody sends."""
    symm.wait_until(flag, "eq", 1, ctx, source=source)
    tl.store(out, 1)


@triton.jit
def signal_kernel(flag, peer, ctx):
    symm.signal_set(flag, 1, peer, ctx)


@triton.jit
def barrier_kernel(ctx):
    symm.barrier(ctx)


@triton.jit
def peer_kernel(box, peer, ctx):
    symm.store(box, 7, peer, ctx)


@triton.jit
def copy_kernel(box, source, ctx, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    symm.put(box + index, source + index, 0, ctx)


@triton.jit
def read_kernel(box, out, BLOCK: tl.constexpr):
    """Of this rank's own memory, by Triton's own functions."""
    index = tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(box + index))


@triton.jit
def fill_kernel(box, puts, ctx):
    index = tl.arange(0, 8)
    for _ in range(puts):
        symm.put(box + index, box + 64 + index, 0, ctx)
    symm.signal_set(box, 1, 0, ctx)
