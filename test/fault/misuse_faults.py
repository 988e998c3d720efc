"""Injections by the program itself: calls that differ between ranks, forks, and tensors of every
awkward kind."""

import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

import model
from errors import unsaid
from harness import DEVICE, IS_SYMM, run_ranks
from rank_processes import RankFailure, describe, start_ranks
from trials import Ending, Progress, Trial, fresh_setup, what_is_missing, words_for

TIMEOUT = 1.0
HANG = 5.0

MIN, SUM = dist.ReduceOp.MIN, dist.ReduceOp.SUM


def _order(rank_is_odd, count):
    calls = [
        lambda: dist.all_reduce(torch.ones(count, device=DEVICE)),
        lambda: dist.all_gather_into_tensor(
            torch.zeros(3 * count, device=DEVICE), torch.ones(count, device=DEVICE)
        ),
    ]
    for call in reversed(calls) if rank_is_odd else calls:
        call()


# name: (what one rank calls, what the others call, words of both sides in the error)
DIFFERENCES = {
    "op": (
        lambda n: dist.all_reduce(torch.ones(n, device=DEVICE), op=MIN),
        lambda n: dist.all_reduce(torch.ones(n, device=DEVICE), op=SUM),
        ["MIN", "SUM"],
    ),
    "count": (
        lambda n: dist.all_reduce(torch.ones(n + 1, device=DEVICE)),
        lambda n: dist.all_reduce(torch.ones(n, device=DEVICE)),
        ["{n1}", "{n}"],
    ),
    "dtype": (
        lambda n: dist.all_reduce(torch.ones(n, dtype=torch.int32, device=DEVICE)),
        lambda n: dist.all_reduce(torch.ones(n, device=DEVICE)),
        ["int32", "float32"],
    ),
    "root": (
        lambda n: dist.broadcast(torch.ones(n, device=DEVICE), 1),
        lambda n: dist.broadcast(torch.ones(n, device=DEVICE), 0),
        ["root 0|root=0", "root 1|root=1"],
    ),
    "order": (lambda n: _order(True, n), lambda n: _order(False, n), ["all_reduce", "all_gather"]),
    "collective": (
        lambda n: dist.barrier(),
        lambda n: dist.all_reduce(torch.ones(n, device=DEVICE)),
        ["barrier", "all_reduce"],
    ),
    "no call": (None, lambda n: dist.all_reduce(torch.ones(n, device=DEVICE)), ["all_reduce"]),
}


def _differ(rank, setup, progress, name, odd_one, count):
    torch.set_num_threads(1)
    setup.join(rank)
    dist.all_reduce(torch.ones(3, device=DEVICE))
    theirs, ours, _ = DIFFERENCES[name]
    started = time.monotonic()
    try:
        if rank != odd_one:
            ours(count)
        elif theirs is not None:
            theirs(count)
        else:
            while progress.end() == Progress.NEVER:
                time.sleep(0.001)
            return Ending(0, 0, started, time.monotonic(), "this rank never called")
        # A rooted collective may be over for a rank that needs nobody: the next call must tell.
        dist.barrier()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(1, 0, started, time.monotonic())


def different_calls(index: int) -> Trial:
    name = list(DIFFERENCES)[index % len(DIFFERENCES)]
    odd_one, count = index % 3, [4, 50_000][index // len(DIFFERENCES) % 2]
    words = [w.format(n=rf"\b{count}\b", n1=rf"\b{count + 1}\b") for w in DIFFERENCES[name][2]]
    if name == "no call":
        words.append(rf"rank {odd_one}\b")
    progress = Progress(3)
    with fresh_setup(3, timeout=TIMEOUT) as setup:
        ranks = start_ranks(_differ, 3, (setup, progress, name, odd_one, count))
        quiet = odd_one if name == "no call" else -1
        ranks.collect(time.monotonic() + TIMEOUT + HANG, leave_out=quiet)
        progress.set_end(1)
        reports = ranks.finish(HANG)
    problems, seconds = [], []
    for report in reports:
        if not isinstance(report.value, Ending):
            problems.append(describe([report]))
            continue
        if report.rank == quiet:
            continue
        took = report.value.ended - report.value.started
        seconds.append(took)
        problem = what_is_missing(report.value.error, words_for(None, None) + words)
        if took > TIMEOUT + 1:
            problem = problem or f"raised after {took:.2f} s"
        if problem:
            problems.append(f"{name} {count}: rank {report.rank}: {problem}")
    return Trial(not problems, seconds, "\n".join(problems))


def never_called(index: int) -> Trial:
    """Every third time by another rank; the others raise when T has passed, and name it."""
    names = list(DIFFERENCES)
    return different_calls(names.index("no call") + len(names) * index)


def _sum_is_right(rank, world, salt=0):
    every = [model.make_input(torch.float32, 5000, r, salt) for r in range(world)]
    tensor = every[rank].clone()
    dist.all_reduce(tensor)
    return model.mismatch(f"all_reduce {salt}", tensor, model.reduced(every, "SUM"), exact=IS_SYMM)


def _in_forked_child(action) -> int:
    """The exit code of a forked child that does `action`: 0 returned, 3 raised, 9 hung."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except Exception:
            os._exit(3)
        except SystemExit:
            os._exit(0)
        os._exit(0)
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return 9


class _Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(index * index)


def _with_data_loader(rank, world):
    loader = torch.utils.data.DataLoader(_Squares(), batch_size=8, num_workers=2)
    problems = []
    for number, batch in enumerate(loader):
        problems += _sum_is_right(rank, world, number)
        expected = [i * i for i in range(8 * number, 8 * number + 8)]
        problems += [] if batch.tolist() == expected else [f"batch {number} is {batch}"]
    return problems


def _child_that(action, expected_codes):
    def run(rank, world):
        code = _in_forked_child(action)
        return [] if code in expected_codes else [f"the child's exit code is {code}"]

    return run


def _destroy_in_child():
    dist.destroy_process_group()
    import gc

    gc.collect()


FORKS = {
    "DataLoader workers": _with_data_loader,
    "child exits": _child_that(lambda: None, [0]),
    "child calls all_reduce": _child_that(lambda: dist.all_reduce(torch.ones(4)), [3]),
    "child calls send": _child_that(lambda: dist.send(torch.ones(4), 0), [3]),
    "child calls barrier": _child_that(lambda: dist.barrier(), [3]),
    "child destroys the group": _child_that(_destroy_in_child, [0, 3]),
    "child aborts the group": _child_that(
        lambda: dist.group.WORLD._get_backend(torch.device("cpu")).abort(), [0, 3]
    ),
    "child leaves by sys.exit": _child_that(lambda: sys.exit(0), [0]),
}


def judged(body, world, label):
    """Runs `body(rank)` giving problems on `world` ranks, and times it."""
    start = time.monotonic()
    try:
        results = run_ranks(body, world, time_limit=20.0, timeout=10.0)
    except RankFailure:
        return Trial(False, [], f"{label}: {traceback.format_exc()}")
    problems = [f"{label}: {line}" for lines in results for line in lines]
    return Trial(not problems, [time.monotonic() - start], "\n".join(problems))


def forked_after_init(index: int) -> Trial:
    """Children can neither use nor harm the group; the parents' group keeps working."""
    name = list(FORKS)[index % len(FORKS)]
    before = index // len(FORKS) % 2  # collectives before the fork or not

    def body(rank):
        problems = _sum_is_right(rank, 3) if before else []
        problems += FORKS[name](rank, 3)
        for salt in range(3):
            problems += _sum_is_right(rank, 3, salt)
        return problems

    return judged(body, 3, name)


def _numbered(tensor):
    """The index of each element, wrapped so that sums of a few ranks are exact in float32."""
    return (torch.arange(tensor.numel()) % 65_521).reshape(tensor.shape)


def _layout(make):
    """all_reduce of an awkwardly laid out tensor: `make(rank, n)` gives it, filled by _filled."""

    def run(rank, world, n):
        tensor = make(rank, n)
        dist.all_reduce(tensor)
        return tensor, _numbered(tensor).float() * world + world * (world - 1) / 2

    return run


def _filled(tensor, rank):
    return tensor.copy_(_numbered(tensor) + rank)


def _channels_last(rank, n, only_rank=None):
    tensor = torch.empty(2, 3, 4, n)
    if only_rank in (None, rank):
        tensor = tensor.to(memory_format=torch.channels_last)
    return _filled(tensor, rank)


def _misaligned(rank, n):
    memory = bytearray(4 * n + 1)
    return _filled(torch.frombuffer(memory, dtype=torch.float32, offset=1, count=n), rank)


def _in_place_gather(offset):
    def run(rank, world, n):
        whole = torch.full((world * n + 3,), -1.0)
        out = whole[: world * n]
        start = rank * n + offset
        mine = whole[start : start + n].fill_(rank + 1.0)
        dist.all_gather_into_tensor(out, mine)
        return out, torch.arange(1.0, world + 1).repeat_interleave(n)

    return run


def _in_place_scatter(rank, world, n):
    whole = torch.arange(world * n, dtype=torch.float32) + rank
    mine = whole[rank * n : (rank + 1) * n]
    dist.reduce_scatter_tensor(mine, whole)
    whole = torch.arange(rank * n, (rank + 1) * n, dtype=torch.float32)
    return mine, whole * world + world * (world - 1) / 2


def _empty(rank, world, n):
    nothing = torch.zeros(0)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.all_gather_into_tensor(torch.zeros(0), nothing)
    dist.reduce_scatter_tensor(torch.zeros(0), nothing)
    dist.all_to_all_single(torch.zeros(0), nothing)
    return nothing, torch.zeros(0)


def _uneven(rank, world, n):
    to = [(n * (rank + r)) % 5 for r in range(world)]
    come = [(n * (r + rank)) % 5 for r in range(world)]
    out = torch.full((sum(come),), -1.0)
    dist.all_to_all_single(out, torch.full((sum(to),), float(rank)), come, to)
    return out, torch.arange(float(world)).repeat_interleave(torch.tensor(come))


def _oversize(rank, world, n):
    out = torch.full((world * n + 1,), -1.0)
    dist.all_gather_into_tensor(out, torch.full((n,), float(rank)))
    return out[:-1], torch.arange(float(world)).repeat_interleave(n)


TENSORS = {
    "non-contiguous": (_layout(lambda rank, n: _filled(torch.empty(n, 2)[:, 0], rank)), "tensor"),
    "transposed": (_layout(lambda rank, n: _filled(torch.empty(n, 3).t(), rank)), "tensor"),
    "expanded": (_layout(lambda rank, n: torch.zeros(1).expand(n)), "tensor"),
    "channels_last": (_layout(_channels_last), "tensor"),
    "channels_last on rank 1": (
        _layout(lambda rank, n: _channels_last(rank, n, only_rank=1)),
        "layout|contiguous|different calls",
    ),
    "misaligned": (_layout(_misaligned), None),
    "empty": (_empty, None),
    "uneven": (_uneven, None),
    "in place all_gather": (_in_place_gather(0), None),
    "aliased all_gather": (_in_place_gather(1), "input|output|tensor"),
    "in place reduce_scatter": (_in_place_scatter, None),
    "oversize output": (_oversize, "output"),
}


def awkward_tensors(index: int) -> Trial:
    """Correct, or refused with the argument named; never corrupt."""
    name = list(TENSORS)[index % len(TENSORS)]
    n = [5, 1027, 60_001, 700_003][index // len(TENSORS) % 4]
    run, word = TENSORS[name]

    def body(rank):
        try:
            got, expected = run(rank, 3, n)
        except (ValueError, RuntimeError) as error:
            text = f"{type(error).__name__}: {error}"
            if word is None:
                return [f"refused, but it is in order: {text}"]
            problems = unsaid(text, [word])
            if "different calls" in text:
                return problems  # found by comparing with the peers: the group has failed
            return problems + _sum_is_right(rank, 3)
        wrong = model.mismatch(name, got.contiguous(), expected, exact=IS_SYMM)
        return wrong + _sum_is_right(rank, 3)

    return judged(body, 3, f"{name}, n = {n}")
