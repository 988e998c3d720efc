"""Runs a function on N ranks, each a process of its own, through torch.distributed.

The pytest process is the zygote: it has imported torch, but never joins a group and never runs a
tensor operation. A rank is therefore an os.fork() away (about 10 ms, where a fresh interpreter
would spend 2 s on `import torch`).

Tests are carried out one after another by the same ranks, in one default group; a failure ends
those ranks, and the next test gets new ones. A test that needs a group that nothing has touched, or
whose function is a closure, says fresh=True; so does, in effect, each setting of its own (backend,
time-out, environment, options). On the CPU its processes are new as well. On GPUs they are those of
the tests before it where that can be: to make a CUDA context takes the driver a quarter of a
second, one after the other for all processes of the machine; closures travel there, too (see
rank_pool.py). fresh=PROCESSES asks for new ones.

The backend is named by SYMM_TEST_BACKEND (default "symm") and is selected through
torch.distributed alone. SYMM_TEST_DEVICE (default "cpu") says where tensors are made: DEVICE names
it, and rank r's current device is GPU r modulo their number, so `device=DEVICE` is right on every
rank. The pytest process never initialises CUDA; what a test expects is computed on the CPU.
"""

import ctypes
import dataclasses
import datetime
import functools
import gc
import inspect
import os
import pickle
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from machine import count_gpus
from rank_pool import RankPool, packed
from rank_processes import RankFailure, describe, start_ranks

# Both names of a collective are tested; newer torch warns at the older one.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

BACKEND = os.environ.get("SYMM_TEST_BACKEND", "symm")
IS_SYMM = BACKEND.split(":")[-1] == "symm"
DEVICE = os.environ.get("SYMM_TEST_DEVICE", "cpu")
ON_CUDA = DEVICE == "cuda"
GPUS = count_gpus() if ON_CUDA else 0
# On the CPU a variable asks for it, to see which tests need PROCESSES without a GPU.
USES_PROCESSES_AGAIN = ON_CUDA or os.environ.get("SYMM_TEST_USE_AGAIN") == "1"
TIMEOUT = 30.0  # seconds; of the default group
# Of tests that let the machine choose; 4 wherever every rank can have what it needs for itself.
WORLD_SIZE = int(os.environ.get("SYMM_TEST_WORLD_SIZE", 2 if ON_CUDA and GPUS < 4 else 4))


def crowded(world_size: int) -> bool:
    """Whether ranks take turns on a GPU, which costs milliseconds whenever one waits for another:
    tests then do fewer rounds."""
    return ON_CUDA and world_size > GPUS


def few(items, most: int, world_size: int = WORLD_SIZE) -> list:
    """All of `items`; where ranks take turns, at most `most` of them, evenly spread."""
    items = list(items)
    return spread(items, most) if crowded(world_size) else items


def spread(items: list, most: int) -> list:
    """At most `most` of `items`, evenly spread."""
    if len(items) <= most:
        return items
    return [items[i * len(items) // most] for i in range(most)]


def use_device(rank: int) -> None:
    """Makes the GPU of `rank` the current one; nothing on the CPU."""
    if ON_CUDA:
        torch.cuda.set_device(rank % GPUS)


def synchronize() -> None:
    """Waits for all that this rank has put on its GPU; nothing on the CPU."""
    if ON_CUDA:
        torch.cuda.synchronize()


def device_of_rank() -> torch.device:
    """DEVICE with its index, as torch functions that compare devices want it."""
    return torch.device(DEVICE, torch.cuda.current_device()) if ON_CUDA else torch.device(DEVICE)


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a rank joins the default group."""

    store_path: str
    world_size: int
    backend: str = BACKEND
    timeout: float = TIMEOUT
    env: tuple[tuple[str, str], ...] = ()
    options: object = None  # called in the rank; gives pg_options
    before_init: object = None  # called in the rank

    def join(self, rank: int) -> None:
        os.environ.update(self.env)
        use_device(rank)
        if self.before_init:
            self.before_init()
        self.init(rank)

    def init(self, rank: int) -> None:
        """join() without what it prepares."""
        dist.init_process_group(
            self.backend,
            store=dist.FileStore(self.store_path, self.world_size),
            rank=rank,
            world_size=self.world_size,
            timeout=datetime.timedelta(seconds=self.timeout),
            pg_options=self.options() if self.options else None,
            # FSDP2 asks NCCL for memory before the first call, which would set it up.
            device_id=torch.device("cuda", torch.cuda.current_device())
            if self.backend == "nccl"
            else None,
        )


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def _prepare_process():
    torch.set_num_threads(1)
    # Large tensors come from the heap and stay there: page faults would be most of a test's time.
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def _carry_out(rank, setup, function, args):
    """`function` in a group of its own."""
    setup.join(rank)
    value = function(rank, *args)
    if not IS_SYMM or "gloo" in setup.backend:
        dist.barrier()  # gloo's set-up fails where a rank has come and gone
    _leave()
    return value


def _leave():
    dist.destroy_process_group()
    # Torch keeps them by the names of groups, which later groups, of other ranks, have again.
    symm_mem._group_name_to_workspace_tensor.clear()


def _in_new_process(rank, setup, function, args):
    _prepare_process()
    return _carry_out(rank, setup, function, args)


_entered: Setup | None = None  # in a rank of the pool: of the group that stays


def _leave_group(rank):
    global _entered
    if _entered is not None:
        _leave()
        _entered = None


def _in_staying_group(rank, setup, function, args):
    global _entered
    if _entered != setup:
        setup.join(rank)
        _entered = setup
    return function(rank, *args)


def _in_used_process(rank, call):
    setup, function, args = pickle.loads(call)
    environment = dict(os.environ)
    try:
        return _carry_out(rank, setup, function, args)
    finally:
        gc.collect()  # what this test leaves is no part of the next
        if ON_CUDA:
            torch.cuda.empty_cache()
        os.environ.clear()
        os.environ.update(environment)


class _StayingGroup:
    """The default group of ranks of the pool in which tests follow each other."""

    _current: "_StayingGroup | None" = None

    def __init__(self, pool, world_size):
        self._folder = tempfile.TemporaryDirectory(prefix="symm_pool_")
        self._pool = pool
        self.setup = Setup(os.path.join(self._folder.name, "store"), world_size)

    @classmethod
    def of(cls, pool, world_size) -> "_StayingGroup":
        """The one that there is, remade for another world size and after a failure."""
        group = cls._current
        if group is None or group._pool is not pool or group.setup.world_size != world_size:
            cls.leave(pool)
            cls._current = cls(pool, world_size)
        return cls._current

    @classmethod
    def leave(cls, pool) -> None:
        group, cls._current = cls._current, None
        if group is not None and group._pool is pool:
            pool.run(group.setup.world_size, _leave_group, (), TIMEOUT)


PROCESSES = "processes"  # of run_ranks(fresh=...)


# What torch_symm.triton reads as it is imported; and a signal that has trapped has ended what its
# process can do with its GPU.
_NEEDS_NEW = ("SYMM_CHECK", "SYMM_RACE_CHECK", "SYMM_TIMELINE", "SYMM_SIGNAL_TRAP")


def _may_be_set_late(variable: str) -> bool:
    """Variables of others, of PyTorch's allocator for one, are read once a process."""
    return variable.startswith("SYMM_") and variable not in _NEEDS_NEW


def _packed(call) -> bytes | None:
    try:
        return packed(call)
    except (AttributeError, TypeError, ValueError, pickle.PicklingError):
        return None


def run_ranks(
    function,
    world_size=4,
    *args,
    time_limit=60.0,
    backend=None,
    timeout=None,
    env=None,
    options=None,
    before_init=None,
    fresh=False,
):
    """Runs `function(rank, *args)` on `world_size` ranks inside a default group and returns the
    results by rank. Any failed or hung rank fails the test with every rank's traceback. Unless
    `fresh`, or a setting of the group or of its processes is given, earlier tests have used the
    group: `function` and `args` then must be picklable, and leave the group as it was found."""
    if not (fresh or backend or timeout or env or options or before_init):
        pool = RankPool.current(_prepare_process)
        setup = _StayingGroup.of(pool, world_size).setup
        return pool.run(world_size, _in_staying_group, (setup, function, args), time_limit)
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(
            store_path=os.path.join(folder, "store"),
            world_size=world_size,
            backend=backend or BACKEND,
            timeout=timeout or TIMEOUT,
            env=tuple((env or {}).items()),
            options=options,
            before_init=before_init,
        )
        call = (setup, function, args)
        needs_new = fresh == PROCESSES or before_init or not all(map(_may_be_set_late, env or ()))
        if USES_PROCESSES_AGAIN and not needs_new and (sent := _packed(call)):
            pool = RankPool.current(_prepare_process)
            _StayingGroup.leave(pool)
            return pool.run(world_size, _in_used_process, (sent,), time_limit)
        ranks = start_ranks(_in_new_process, world_size, call)
        reports = ranks.finish(time_limit, grace=2.0)
    if not all(r.returned for r in reports):
        raise RankFailure(f"{world_size} ranks on {setup.backend}:\n" + describe(reports))
    return [r.value for r in reports]


def _options_of(fields):
    import torch_symm

    options = torch_symm.Options()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def options_with(**fields):
    """For run_ranks(options=...): a torch_symm.Options with these fields."""
    return functools.partial(_options_of, fields)


def new_group_in_order(ranks):
    """(group, ranks by group rank). The order is that of `ranks`; torch 2.11 can only sort."""
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        return dist.new_group(ranks, sort_ranks=False), ranks
    return dist.new_group(ranks), sorted(ranks)


def expect_no_mismatch(results) -> None:
    """`results`: a list of mismatch descriptions from every rank."""
    lines = [
        f"rank {rank}: {line}" for rank, mismatches in enumerate(results) for line in mismatches
    ]
    assert not lines, f"{len(lines)} mismatches:\n" + "\n".join(lines[:40])


def check(function, world_size, *args, **options) -> None:
    """run_ranks() where each rank returns what it found wrong, a list."""
    expect_no_mismatch(run_ranks(function, world_size, *args, **options))


def _fewest_threads() -> int:
    """Linux may list a thread for a moment after it has been joined."""
    fewest = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        time.sleep(0.001)
        fewest = min(fewest, len(os.listdir("/proc/self/task")))
    return fewest


def resources():
    """What a process holds. A GPU's driver maps areas and opens files of its own accord."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": _fewest_threads(),
        "mappings": sum(1 for _ in open("/proc/self/maps")),
    }
