"""Injections on processes: killed, stopped, ended in other ways, aborted, forked."""

import json
import os
import signal
import time
from unittest import mock

import torch
import torch.distributed as dist

from harness import BACKEND, DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, run_ranks
from rank_processes import describe, start_ranks
from scripts import ScriptRunner
from trials import (
    COLLECTIVES,
    LONG,
    Ending,
    Progress,
    Trial,
    fresh_setup,
    judge,
    looping_ranks,
    settle,
    what_is_missing,
    words_for,
)

WORDS = list(COLLECTIVES)
# Elements: what takes one way through the kernels each.
COUNTS = [30, 40_000, 4_000_000 if ON_CUDA else 400_000]
HANG = 20.0 if ON_CUDA else 5.0  # a survivor that takes longer has hung; there it makes a new group
TIMEOUT = 1.0  # T where a time-out is the point


def _variant(index: int):
    """(collective, count, victim, delay in s): every collective at every size, any phase."""
    word = WORDS[index % len(WORDS)]
    count = COUNTS[index // len(WORDS) % len(COUNTS)]
    return word, count, index % WORLD_SIZE, (index * 37 % 23) * 0.0003


def killed_in_a_collective(index: int) -> Trial:
    word, count, victim, delay = _variant(index)
    with looping_ranks(WORLD_SIZE, word, count, victim=victim) as (ranks, _):
        time.sleep(delay)
        killed = time.monotonic()
        ranks.signal(victim, signal.SIGKILL)
        reports = ranks.finish(HANG)
    return judge(reports, victim, word, killed, limit=1.0)


def killed_while_peers_read(index: int) -> Trial:
    """The peers of the victim copy from its process (SYMM_SINGLE_COPY=1) when it ends."""
    word = ["all_to_all", "send|recv"][index % 2]
    victim, delay = index // 2 % WORLD_SIZE, (index * 37 % 23) * 0.0003
    with mock.patch.dict(os.environ, SYMM_SINGLE_COPY="1"):
        with looping_ranks(WORLD_SIZE, word, 1_000_000, victim=victim) as (ranks, _):
            time.sleep(delay)
            killed = time.monotonic()
            ranks.signal(victim, signal.SIGKILL)
            reports = ranks.finish(HANG)
    return judge(reports, victim, word, killed, limit=1.0)


def fresh_processes_after_a_kill(index: int) -> Trial:
    trial = killed_in_a_collective(index)
    start = time.monotonic()
    world = WORLD_SIZE
    results = run_ranks(
        lambda r: bool(COLLECTIVES["all_reduce"](r, world, 70_000, 0)), world, fresh=True
    )
    passed = trial.passed and results == [True] * world
    return Trial(passed, [time.monotonic() - start], trial.detail)


def stopped_beyond_the_timeout(index: int) -> Trial:
    """Raises within [T, T + 1 s], naming who did not arrive."""
    word, count, victim, delay = _variant(index)
    with looping_ranks(3, word, count, timeout=TIMEOUT) as (ranks, _):
        victim %= 3
        time.sleep(delay)
        ranks.signal(victim, signal.SIGSTOP)
        ranks.collect(time.monotonic() + TIMEOUT + HANG, leave_out=victim)
        ranks.signal(victim, signal.SIGKILL)
        reports = ranks.finish(HANG)
    # A message has one other side, which may itself be waiting for the stopped rank.
    named = None if word == "send|recv" else victim
    trial = judge(reports, victim, word, 0.0, limit=float("inf"), named=named)
    endings = [r.value for r in reports if isinstance(r.value, Ending)]
    trial.seconds = [e.ended - e.started for e in endings]
    first_call = min((e.started for e in endings), default=0.0)
    for ending in endings:
        # A rank may raise because another one, that had called a little earlier, gave up.
        if ending.ended - first_call < TIMEOUT or ending.ended - ending.started > TIMEOUT + 1:
            trial.passed = False
            trial.detail += f"\nraised {ending.ended - ending.started:.3f} s after its call"
    return trial


def stopped_for_half_the_timeout(index: int) -> Trial:
    """Completes, with right values in every iteration before and after."""
    word, count, victim, delay = _variant(index)
    victim %= 3
    with looping_ranks(3, word, count, timeout=TIMEOUT) as (ranks, progress):
        time.sleep(delay)
        ranks.signal(victim, signal.SIGSTOP)
        time.sleep(TIMEOUT / 2)
        ranks.signal(victim, signal.SIGCONT)
        resumed = time.monotonic()
        progress.ask_to_end()
        reports = ranks.finish(20.0)
    problems = [describe([r]) for r in reports if not isinstance(r.value, Ending)]
    endings = [r.value for r in reports if isinstance(r.value, Ending)]
    problems += [f"{e.wrong} wrong results, {e.error}" for e in endings if e.wrong or e.error]
    if len({e.iterations for e in endings}) != 1:
        problems.append(f"iterations differ: {[e.iterations for e in endings]}")
    return Trial(not problems, [e.ended - resumed for e in endings], "\n".join(problems))


def _set_up_and_tear_down(rank, setup, progress, stage):
    """Each stage counts up when it begins, so that the injector can strike inside it."""
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        if stage == "init":
            progress.set(rank, 1)
        setup.join(rank)
        for repeat in range(1000 if stage in ("new_group", "split") else 1):
            started = time.monotonic()
            if stage in ("new_group", "split"):
                progress.set(rank, repeat + 1)
                _make_and_drop_a_group(stage, repeat)
            elif stage == "destroy":
                dist.barrier()
                progress.set(rank, 1)
                dist.destroy_process_group()
                return Ending(1, 0, started, time.monotonic())
            else:
                for _ in range(2000):  # ends by the victim's death
                    dist.barrier()
                    time.sleep(0.001)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(1, 0, started, time.monotonic())


def _make_and_drop_a_group(stage, repeat):
    if stage == "split":
        name = f"part {repeat}"
        group = dist.group.WORLD.split_group([0, 1, 2], None, None, name, name)
        group.barrier().wait()
        return
    group = dist.new_group([0, 1, 2])
    dist.barrier(group=group)
    dist.destroy_process_group(group)


STAGES = ["init", "new_group", "split", "destroy"] if IS_SYMM else ["init", "new_group", "destroy"]


def killed_during_set_up(index: int) -> Trial:
    """The others raise, or have nothing left to wait for, within the time-out of set-up."""
    stage, victim, limit = STAGES[index % len(STAGES)], index // 4 % 3, TIMEOUT + 1.0
    progress = Progress(3)
    with fresh_setup(3, timeout=TIMEOUT) as setup:
        ranks = start_ranks(_set_up_and_tear_down, 3, (setup, progress, stage))
        progress.wait_for(1 + index % 3 if stage in ("new_group", "split") else 1)
        time.sleep((index * 31 % 29) * (0.0002 if stage != "init" else 0.0006))
        killed = time.monotonic()
        ranks.signal(victim, signal.SIGKILL)
        reports = ranks.finish(limit + HANG)
    seconds, problems = [], []
    for report in reports:
        if report.rank == victim:
            continue
        if not isinstance(report.value, Ending):
            problems.append(f"{stage}: {describe([report])}")
            continue
        took = max(0.0, report.value.ended - killed)
        seconds.append(took)
        if took > limit:
            problems.append(f"{stage}: rank {report.rank} ended after {took:.2f} s")
        # A rank that destroys its group needs nobody; an error of set-up has no sequence number.
        missing = what_is_missing(report.value.error, [rf"ranks? [0-9, ]*\b{victim}\b"])
        if stage != "destroy" and missing:
            problems.append(f"{stage}: rank {report.rank}: {missing}")
    return Trial(not problems, seconds, "\n".join(problems))


ENDS = {
    "exit(1)": "sys.exit(1)",
    "abort()": "os.abort()",
    "exception": "raise KeyError('on purpose')",
    "os._exit": "os._exit(7)",
}
_PROGRAM = """
import json, os, sys, time, torch, torch.distributed as dist
from datetime import timedelta
rank = int(sys.argv[1])
torch.set_num_threads(1)
store = dist.FileStore(sys.argv[2], 4)
dist.init_process_group({backend!r}, store=store, rank=rank, world_size=4,
                        timeout=timedelta(seconds={timeout}))
try:
    for iteration in range(10**9):
        if rank == {victim} and iteration == {iteration}:
            break
        dist.all_reduce(torch.ones({count}))
except Exception as error:
    print(json.dumps([time.monotonic(), f"{{type(error).__name__}}: {{error}}"]), flush=True)
    os._exit(0)
{end}
"""
_runner = ScriptRunner()


def ended_in_another_way(index: int) -> Trial:
    ways = list(ENDS)
    victim = index % 4
    text = _PROGRAM.format(
        backend=BACKEND,
        timeout=LONG,
        victim=victim,
        iteration=5 + index % 7,
        count=COUNTS[index % 3],
        end=ENDS[ways[index // 4 % len(ways)]],
    )
    results = _runner(text, world_size=4, limit=20.0)
    reports, end = [], results[victim].ended_at
    for rank, result in enumerate(results):
        if rank == victim:
            continue
        try:
            when, error = json.loads(result.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return Trial(False, [], f"rank {rank}: {result}")
        reports.append((rank, max(0.0, when - end), error))
    problems = [
        f"rank {rank}: {problem or f'raised after {took:.3f} s'}"
        for rank, took, error in reports
        for problem in [what_is_missing(error, words_for(victim, "all_reduce"))]
        if problem or took > 1.0
    ]
    return Trial(not problems, [took for _, took, _ in reports], "\n".join(problems))


def _abort_one(rank, setup, progress, victim):
    torch.set_num_threads(1)
    setup.join(rank)
    dist.all_reduce(torch.ones(3, device=DEVICE))
    started = time.monotonic()
    progress.set(rank, 1)
    try:
        if rank == victim:
            while progress.end() == Progress.NEVER:
                time.sleep(0.0005)
            dist.group.WORLD._get_backend(torch.device(DEVICE)).abort()
        dist.all_reduce(torch.ones(50_000, device=DEVICE))
        settle()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(1, 0, started, time.monotonic())


def aborted_on_one_rank(index: int) -> Trial:
    """The others, inside a collective or about to enter it, raise within 1 s; nobody crashes."""
    victim = index % 3
    progress = Progress(3)
    with fresh_setup(3) as setup:
        ranks = start_ranks(_abort_one, 3, (setup, progress, victim))
        progress.wait_for(1)
        time.sleep((index * 13 % 17) * 0.0005)
        aborted = time.monotonic()
        progress.set_end(1)
        reports = ranks.finish(HANG)
    # Between its two calls a rank has none to name.
    words = r"all_reduce|after device seq 1\b" if ON_CUDA else "all_reduce"
    trial = judge(reports, victim, words, aborted, limit=1.0)
    itself = reports[victim]
    if not isinstance(itself.value, Ending) or itself.value.error is None:
        trial = Trial(False, trial.seconds, trial.detail + describe([itself]))
    return trial
