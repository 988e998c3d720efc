"""Injections into groups over several hosts: four ranks of this machine as two hosts of two."""

import contextlib
import ctypes
import datetime
import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist

from harness import BACKEND
from rank_processes import describe, served_store, start_ranks
from trials import COLLECTIVES, Ending, Progress, Trial, loop, looping_ranks, quiet, what_is_missing

HOSTS = "aabb"
WORDS = [word for word in COLLECTIVES if word != "send|recv"]  # that is the engine's own
COUNTS = [30, 40_000, 400_000]  # in the heads, by the leaders, over rails; some lie between
TIMEOUT = 2.0
NOTICED = 1.0  # s until the engine has told the other host of a death
HANG = 10.0
CALLS_AFTER = 20  # without the Store


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, timeout=20).returncode == 0


class Wire:
    """A network namespace a host, and one wire between them."""

    def __init__(self):
        self.names = {host: f"symm{os.getpid()}{host}" for host in "ab"}

    def __enter__(self):
        a, b = self.names["a"], self.names["b"]
        commands = [f"netns add {a}", f"netns add {b}"]
        commands += [f"-n {a} link add {a} type veth peer name {b} netns {b}"]
        for index, name in enumerate((a, b)):
            commands += [f"-n {name} addr add 10.213.77.{index + 1}/24 dev {name}"]
            commands += [f"-n {name} link set {name} up", f"-n {name} link set lo up"]
        for command in commands:
            if not _ip(*command.split()):
                self.__exit__()
                raise PermissionError(f"not allowed here: ip {command}")
        return self

    def __exit__(self, *_):
        for name in self.names.values():
            _ip("netns", "del", name)

    def cut(self) -> None:
        name = self.names["a"]
        _ip("-n", name, "link", "set", name, "down")


def has_wires() -> bool:
    """Whether this process may make network namespaces."""
    try:
        with Wire():
            return True
    except (OSError, subprocess.TimeoutExpired):
        return False


def _loop_on_host(rank, setup, progress, word, count, wire):
    host = HOSTS[rank]
    os.environ["SYMM_HOST_ID"] = f"host-{host}"
    if wire is not None:
        name = wire.names[host]
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = name
    return loop(rank, setup, progress, word, count)


def _ranks_of(host: str) -> list[int]:
    return [rank for rank, of in enumerate(HOSTS) if of == host]


def _judge(reports, gone: list[int], since: float, limit: float, words) -> Trial:
    seconds, problems = [], []
    for report in reports:
        if report.rank in gone:
            continue
        if not isinstance(report.value, Ending):
            problems.append(describe([report]))
            continue
        took = max(0.0, report.value.ended - since)
        seconds.append(took)
        problem = what_is_missing(report.value.error, words(report.rank))
        if took > limit:
            problem = problem or f"raised after {took:.3f} s: {report.value.error}"
        if report.value.wrong:
            problem = f"{report.value.wrong} wrong results"
        if problem:
            problems.append(f"rank {report.rank}: {problem}")
    return Trial(not problems, seconds, "\n".join(problems))


def _words(word: str, rank: int, blamed: list[int]) -> list[str]:
    """The group, the call, the rank that raises, and one of whom it may have heard."""
    words = [
        r'group "[^"]*": ' + word.strip() + " over hosts",
        r"seq \d+",
        rf"rank {rank} on host host-{HOSTS[rank]}",
    ]
    if blamed:
        words.append(rf"rank ({'|'.join(str(one) for one in blamed)})\b")
    return words


def killed_on_a_host(index: int) -> Trial:
    """One rank, or all of its host, in any collective at any size. The ranks of its host name it,
    those of the other host one of that host."""
    word, count = WORDS[index % len(WORDS)], COUNTS[index // len(WORDS) % len(COUNTS)]
    victim = index % len(HOSTS)
    host = _ranks_of(HOSTS[victim])
    gone = host if index % 3 == 2 else [victim]
    with looping_ranks(len(HOSTS), word, count, body=_loop_on_host) as (ranks, _):
        time.sleep(index * 37 % 23 * 0.0003)
        killed = time.monotonic()
        for rank in gone:
            ranks.signal(rank, signal.SIGKILL)
        reports = ranks.finish(HANG)

    def words(rank):
        return _words(word, rank, gone if HOSTS[rank] == HOSTS[victim] else host)

    return _judge(reports, gone, killed, NOTICED, words)


def cut_between_hosts(index: int) -> Trial:
    """The wire between two network namespaces goes down: every rank raises within T + 1 s."""
    word, count = WORDS[index % len(WORDS)], COUNTS[index // len(WORDS) % len(COUNTS)]
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire())
        ranks, _ = stack.enter_context(
            looping_ranks(len(HOSTS), word, count, TIMEOUT, wire, body=_loop_on_host)
        )
        cut = time.monotonic()
        wire.cut()
        reports = ranks.finish(TIMEOUT + HANG)
    return _judge(reports, [], cut, TIMEOUT + 1.0, lambda rank: _words(word, rank, []))


def _outlive_the_store(rank, port, progress, word, count):
    """Calls go on before and after its end; then a group is asked for, then the first one left."""
    torch.set_num_threads(1)
    quiet()
    os.environ["SYMM_HOST_ID"] = f"host-{HOSTS[rank]}"
    limit = datetime.timedelta(seconds=TIMEOUT)
    store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=len(HOSTS), timeout=limit)
    wrong = iteration = after = 0
    while after < CALLS_AFTER:
        wrong += not COLLECTIVES[word](rank, len(HOSTS), count, iteration)
        iteration += 1
        progress.set(rank, iteration)
        # The ranks agree when it was, so that all make the same calls.
        is_gone = torch.tensor(int(progress.end() != Progress.NEVER))
        dist.all_reduce(is_gone, dist.ReduceOp.MAX)
        after += int(is_gone)
    started, text = time.monotonic(), None
    try:
        dist.new_group(range(len(HOSTS)))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    ended = time.monotonic()
    dist.destroy_process_group()
    return Ending(iteration, wrong, started, ended, text)


def store_gone(index: int) -> Trial:
    """The Store's process is killed: the group's calls go on with the right values, a new group is
    an error on every rank within T + 1 s, and the first one can be left."""
    word, count = WORDS[index % len(WORDS)], COUNTS[index // len(WORDS) % len(COUNTS)]
    progress = Progress(len(HOSTS))
    with served_store() as (port, end):
        ranks = start_ranks(_outlive_the_store, len(HOSTS), (port, progress, word, count))
        started = progress.wait_for(3)
        end()
        progress.set_end(0)
        reports = ranks.finish(TIMEOUT + HANG if started else 0)
    problems = [describe([r]) for r in reports if not isinstance(r.value, Ending)]
    endings = [(r.rank, r.value) for r in reports if isinstance(r.value, Ending)]
    for rank, ending in endings:
        took = ending.ended - ending.started
        if ending.wrong:
            problems.append(f"rank {rank}: {ending.wrong} of {ending.iterations} calls wrong")
        elif took > TIMEOUT + 1.0:
            problems.append(f"rank {rank}: after {took:.3f} s: {ending.error}")
        elif problem := what_is_missing(ending.error, [rf"group '\d+', rank {rank}: the store"]):
            problems.append(f"rank {rank}: {problem}")
    seconds = [ending.ended - ending.started for _, ending in endings]
    return Trial(not problems, seconds, "\n".join(problems))
