"""Ranks whose processes may have little: descriptors, locked memory, address space, bytes of a
file, room in /dev/shm and in the temporary folder. A group that does not fit is refused in words;
no process dies."""

import contextlib
import ctypes
import importlib
import itertools
import os
import random
import resource
import threading
import time

import torch
import torch.distributed as dist

from harness import Setup
from rank_processes import describe, start_ranks
from trials import Ending, Trial, fresh_setup, what_is_missing

WORLD = 3
TIMEOUT = 5.0
HANG = 10.0
MIB = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """unshare(2)."""
    _call(_libc.unshare(flags))


def mount(kind: str, where: str, options: str = "") -> None:
    """mount(2) of a file system that has no device, for this process and its children alone."""
    unshare(CLONE_NEWNS)
    _call(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _call(_libc.mount(kind.encode(), where.encode(), kind.encode(), 0, options.encode()))


def is_permitted(action) -> bool:
    """Whether a forked child may do `action`."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _limit(which, value):
    def apply(setup):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (value, hard))

    return apply


def _more_descriptors(number):
    """As many more as that. The limit is on the highest number, and those in use may have gaps."""

    def apply(setup):
        names = os.listdir("/proc/self/fd")  # one of them was the listing's
        taken = {int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")}
        free = (n for n in itertools.count() if n not in taken)
        _limit(resource.RLIMIT_NOFILE, next(itertools.islice(free, number, None)))(setup)

    return apply


def _more_address_space(mib):
    def apply(setup):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, now + int(mib * MIB))(setup)

    return apply


def _small_shm(setup):
    mount("tmpfs", "/dev/shm", "size=64k")


def _full_tmp(setup):
    """A temporary folder in which nothing can be made."""
    folder = os.path.dirname(setup.store_path) + "/full"
    os.makedirs(folder, exist_ok=True)
    mount("tmpfs", folder, "size=4k,nr_inodes=1")
    os.environ["TMPDIR"] = folder


def _absent_tmp(setup):
    os.environ["TMPDIR"] = "/no/such/folder"


def _long_tmp(setup):
    folder = os.path.dirname(setup.store_path) + "/" + "x" * 100
    os.makedirs(folder, exist_ok=True)
    os.environ["TMPDIR"] = folder


# (what is done to the process, what an error about it must say).
DESCRIPTORS = r"RLIMIT_NOFILE|[Tt]oo many open files|descriptor"
SPACE = (
    r"RLIMIT_AS|Cannot allocate memory|address space|bytes of|not enough memory|bad_alloc|thread"
)
SIZE = r"RLIMIT_FSIZE|File too large|file size"
LIMITS = {f"{n} more descriptors": (_more_descriptors(n), DESCRIPTORS) for n in range(0, 32, 1)}
LIMITS |= {
    f"{mib} MiB more address space": (_more_address_space(mib), SPACE)
    for mib in (0.25, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
}
LIMITS |= {
    f"files of {size} bytes": (_limit(resource.RLIMIT_FSIZE, size), SIZE)
    for size in (4096, 65_536, 600_000, 2 * MIB)
}
# These take nothing from symm, which locks no memory and uses neither.
HARMLESS = {
    "no locked memory": _limit(resource.RLIMIT_MEMLOCK, 0),
    "64 KiB of locked memory": _limit(resource.RLIMIT_MEMLOCK, 65_536),
    "no core files": _limit(resource.RLIMIT_CORE, 0),
    "absent TMPDIR": _absent_tmp,
    "long TMPDIR": _long_tmp,
}
if is_permitted(lambda: mount("tmpfs", "/dev/shm", "size=64k")):
    HARMLESS |= {"/dev/shm of 64 KiB": _small_shm, "full TMPDIR": _full_tmp}
CASES = [(name, *LIMITS[name]) for name in LIMITS] + [
    (name, HARMLESS[name], None) for name in HARMLESS
]
VARIANTS = 2 * len(CASES)  # of one rank, of all ranks
random.Random(1).shuffle(CASES)  # a few of them are of every kind


def _use_everything(rank):
    """Each kind of memory, descriptor and thread that a group comes to have."""
    tensors = [torch.full((count,), rank + 1.0) for count in (40, 300_000)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.all_reduce(torch.ones(5), async_op=True).wait()
    received = torch.zeros(300_000)
    works = [dist.isend(tensors[1], (rank + 1) % WORLD), dist.irecv(received, (rank - 1) % WORLD)]
    for work in works:
        work.wait()
    part = dist.new_group(list(range(WORLD)))
    dist.all_reduce(torch.ones(300_000), group=part)
    wrong = [t for t in (*tensors, received) if not bool((t == 6.0).all())]
    return len(wrong)


def _limited(rank, setup, apply, limited):
    torch.set_num_threads(1)
    threading.Thread(target=lambda: None).start()  # what Python itself needs for threads is there,
    importlib.import_module("torch_symm._C")  # and the library is loaded
    started = time.monotonic()
    try:
        if rank in limited:
            apply(setup)
        setup.join(rank)
        wrong = _use_everything(rank)
        dist.destroy_process_group()
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        with contextlib.suppress(ValueError, OSError):
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(1, wrong, started, time.monotonic())


def _judge(report, word, limited) -> str:
    if not isinstance(report.value, Ending):
        return describe([report])
    ending = report.value
    if ending.ended - ending.started > TIMEOUT + 1:
        return f"ended after {ending.ended - ending.started:.2f} s: {ending.error}"
    if ending.wrong:
        return f"{ending.wrong} wrong results"
    if ending.error is None:
        return ""
    if word is None:
        return f"refused, but it is in order: {ending.error}"
    # A rank may hear of another's limit before it meets its own; a rank limited alone may not.
    alone = limited == [report.rank]
    return what_is_missing(ending.error, [word if alone else rf"{word}|rank \d"])


def limited_rank(index: int) -> Trial:
    """The group works, or every rank raises an error in time, that of a limited rank in words that
    tell what is short."""
    name, apply, word = CASES[index // 2 % len(CASES)]
    limited = [index // 2 % WORLD] if index % 2 else range(WORLD)
    with fresh_setup(WORLD) as setup:
        setup = Setup(setup.store_path, WORLD, timeout=TIMEOUT)
        start = time.monotonic()
        ranks = start_ranks(_limited, WORLD, (setup, apply, list(limited)))
        reports = ranks.finish(TIMEOUT + HANG)
    problems = [
        f"{name} on {list(limited)}: rank {report.rank}: {problem}"
        for report in reports
        if (problem := _judge(report, word, limited))
    ]
    endings = [r.value.error for r in reports if isinstance(r.value, Ending)]
    raised = " ".join(error for error in endings if error)
    if raised and word and not problems and what_is_missing(raised, [word]):
        problems = [f"{name} on {list(limited)}: no rank says what is short: {endings}"]
    if len({error is None for error in endings}) > 1 and not problems:
        problems = [f"{name} on {list(limited)}: only some have raised: {endings}"]
    return Trial(not problems, [time.monotonic() - start], "\n".join(problems))
