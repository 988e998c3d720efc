"""Groups made again under their old names over a Store that still holds what earlier tries left:
rounds in one program, runs after a killed one, restarts by torchrun, two jobs on one Store."""

import datetime
import fcntl
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest
import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness import BACKEND, DEVICE, IS_SYMM, crowded, synchronize, use_device
from programs import free_port
from rank_pool import RankPool
from rank_processes import RankFailure, describe, run_processes, served_store, start_ranks

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="what this backend leaves in a Store")

WORLD = 3
LIMIT = 20.0  # of a set-up that has to succeed
ROUNDS = [3 if crowded(WORLD) else 10, pytest.param(100, marks=pytest.mark.long)]
STORES = ["file", "tcp"]


class Served(int):
    """The port of a TCPStore that a process of its own serves, which ranks that are killed leave
    whole. A FileStore whose writer is killed inside set() ends inside an entry, and PyTorch's
    FileStore reads such a file for ever, already where the next start makes it."""


def open_store(where, rank, world=WORLD):
    """`where`: the path of a FileStore, or the port of a TCPStore, which rank 0 serves unless it is
    `Served`."""
    if isinstance(where, str):
        return dist.FileStore(where, -1)
    serves = rank == 0 and not isinstance(where, Served)
    limit = datetime.timedelta(seconds=LIMIT)
    return dist.TCPStore("127.0.0.1", where, world, serves, limit, wait_for_workers=False)


@pytest.fixture
def lasting_store():
    with served_store() as (port, _):
        yield Served(port)


def join(store, rank, world=WORLD, timeout=LIMIT):
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world, timeout=limit)


def check_sum(group=None, world=WORLD):
    tensor = torch.full((1000,), dist.get_rank() + 1.0, device=DEVICE)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [world * (world + 1) / 2] * 1000


def abort_the_world():
    dist.group.WORLD._get_backend(torch.device(DEVICE)).abort()


def world_again(store, rank, index):
    join(store, rank)
    check_sum()
    dist.destroy_process_group()


def new_group_again(store, rank, index):
    if index == 0:
        join(store, rank)
    group = dist.new_group([0, 1, 2], use_local_synchronization=True)
    check_sum(group)
    dist.destroy_process_group(group)


def sum_until_it_raises():
    while True:  # on a GPU a later call raises
        dist.all_reduce(torch.ones(1000, device=DEVICE))
        synchronize()


def recovery_after_abort(store, rank, index):
    join(store, rank)
    check_sum()
    # An abort ends what is still on another rank's GPU.
    store.set(f"summed {index} {rank}", "1")
    store.wait([f"summed {index} {other}" for other in range(WORLD)])
    if rank == index % WORLD:
        abort_the_world()
    with pytest.raises(RuntimeError, match="abort"):
        sum_until_it_raises()
    dist.destroy_process_group()


FORMS = [world_again, new_group_again, recovery_after_abort]


def run_rounds(rank, where, form, rounds, jitter):
    torch.set_num_threads(1)
    use_device(rank)
    store = open_store(where, rank)
    delays = random.Random(rank)
    for index in range(rounds):
        if jitter:
            time.sleep(delays.choice([0, 0, 0.001, 0.003, 0.02]))
        form(store, rank, index)
        if index == 0:
            store.set(f"begun {rank}", "1")
    if rank == 0:  # its process serves the store
        store.wait([f"done {other}" for other in range(1, WORLD)])
    else:
        store.set(f"done {rank}", "1")
    return rounds


def place_of(kind, tmp_path):
    return str(tmp_path / "store") if kind == "file" else free_port()


def expect_returned(reports, value=None):
    if not all(r.returned and (value is None or r.value == value) for r in reports):
        raise RankFailure(describe(reports))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("jitter", [False, True], ids=["together", "jitter"])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_rounds_over_one_store(form, kind, jitter, rounds, tmp_path):
    where = place_of(kind, tmp_path)
    expect_returned(run_processes(run_rounds, WORLD, where, form, rounds, jitter), rounds)


def join_and_stay(rank, where, absent=()):
    torch.set_num_threads(1)
    if rank not in absent:
        join(open_store(where, rank), rank)
    time.sleep(60)


def killed_run(path, absent, seconds=0.3):
    """Ranks that are killed in a group, or while they wait for those that are absent, and none of
    them inside set() of the FileStore, which holds the lock of its file."""
    ranks = start_ranks(join_and_stay, WORLD, (path, absent))
    time.sleep(seconds)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for rank in range(WORLD):
            ranks.signal(rank, signal.SIGKILL)
        ranks.finish(5.0)


@pytest.mark.parametrize(
    "absent", [(), (1,), (0, 2)], ids=["in a group", "in set-up", "most absent"]
)
def test_store_left_by_a_killed_run(absent, tmp_path):
    path = str(tmp_path / "store")
    killed_run(path, absent)
    expect_returned(run_processes(run_rounds, WORLD, path, world_again, 3, True), 3)


def incarnation(rank, where, victims, stage):
    """One start of a rank by a launcher."""
    torch.set_num_threads(1)
    time.sleep(random.choice([0, 0.002, 0.01, 0.05]))
    store = open_store(where, rank)
    if rank in victims and stage == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    join(store, rank)
    spent = time.monotonic() - start
    check_sum()
    if rank in victims:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        check_sum()
    dist.destroy_process_group()
    return spent


@pytest.mark.parametrize("restarts", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("stage", ["before", "during", "after"])
def test_ranks_started_anew_come_back(stage, restarts, lasting_store):
    """As torchrun does it: some ranks are killed at init or in a collective, the launcher kills the
    others and starts all of them again over the same store."""
    for trial in range(restarts):
        victims = [{0}, {1}, {2}, {1, 2}][trial % 4]
        ranks = start_ranks(incarnation, WORLD, (lasting_store, victims, stage))
        time.sleep(0.02 + 0.005 * (trial % 10))
        for rank in range(WORLD):
            if rank in victims and stage == "during":
                ranks.signal(rank, signal.SIGKILL)
        ranks.collect(time.monotonic() + 0.2)
        for rank in list(ranks.running()):
            ranks.signal(rank, signal.SIGKILL)
        ranks.finish(5.0)
        reports = run_processes(incarnation, WORLD, lasting_store, (), stage)
        expect_returned(reports)
        assert max(report.value for report in reports) < LIMIT / 2


_kept = []  # the end of a FileStore reads the file too


def join_a_torn_store(rank, where, tail):
    torch.set_num_threads(1)
    store = open_store(where, rank)
    _kept.append(store)
    store.set(f"here {rank}", "1")
    store.wait([f"here {other}" for other in range(WORLD)])
    if rank == 0:  # It leaves the file as a process does that is killed inside set().
        time.sleep(0.1)
        with open(where, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # set() holds it, and readers count on that
            file.write(tail)
        return None
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"FileStore.*ends inside an entry.*use a new file"):
        join(store, rank)
    return time.monotonic() - start < 3.0


@pytest.mark.parametrize(
    "tail", [b"\x17\0", b"\x17\0\0\0", b"\x02\0\0\0ab", b"\x01\0\0\0a\x05\0\0\0b"]
)
def test_a_rank_killed_while_it_writes_to_a_file_store(tail, tmp_path):
    reports = run_processes(join_a_torn_store, WORLD, str(tmp_path / "store"), tail, time_limit=10)
    expect_returned(reports)
    assert [report.value for report in reports] == [None, True, True]


def second_job(rank, where):
    torch.set_num_threads(1)
    with pytest.raises(RuntimeError) as caught:
        join(open_store(where, rank), rank, timeout=5.0)
    return str(caught.value)


def test_a_second_job_on_the_store_is_refused_by_name(tmp_path):
    where = str(tmp_path / "store")
    rounds = 20 if crowded(WORLD) else 100
    first = start_ranks(run_rounds, WORLD, (where, world_again, rounds, True))
    store = dist.FileStore(where, -1)
    store.wait([f"begun {rank}" for rank in range(WORLD)], datetime.timedelta(seconds=LIMIT))
    reports = run_processes(second_job, WORLD, where)
    expect_returned(reports)
    for report in reports:
        words = f"another job uses .*'symm/peer/{report.rank}'"
        assert re.search(words, report.value), report.value
    expect_returned(first.finish(60.0), rounds)


_WORKER = """
import os, signal, sys
import torch, torch.distributed as dist
from datetime import timedelta

torch.set_num_threads(1)
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group({backend!r}, timeout=timedelta(seconds=30))
dist.all_reduce(torch.ones(100))
if rank == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(20):
    dist.all_reduce(torch.ones(100))
dist.destroy_process_group()
if rank == 0:
    open(sys.argv[1], "a").write(f"{{attempt}}\\n")
"""


@pytest.mark.long
def test_torchrun_restarts(tmp_path):
    script, result = tmp_path / "worker.py", tmp_path / "result"
    script.write_text(_WORKER.format(backend=BACKEND))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command += ["--nproc-per-node=2", str(script), str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert result.read_text() == "1\n"


RESTARTS = 2


def worker(victims, stage, result):
    """What torchrun starts, and starts anew."""
    torch.set_num_threads(1)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    doomed = attempt < RESTARTS and rank in victims
    if doomed and stage == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if doomed and stage == "during":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.05))  # in set-up or behind it
    limit = datetime.timedelta(seconds=LIMIT)
    try:
        dist.init_process_group(BACKEND, timeout=limit)
        dist.all_reduce(torch.ones(100))
    finally:
        # Also where a peer's death is an error here, which torch would write to a file: a death in
        # the middle of that leaves it empty, and the agent cannot read it.
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(20):
        dist.all_reduce(torch.ones(100))
    dist.destroy_process_group()
    if rank == 0:
        with open(result, "a") as file:
            file.write(f"{attempt}\n")


def launch(rank, *args):
    """What torchrun does with its options, but that a worker is a fork of a server that has made
    the imports. Of this process it cannot be one: the agent has threads."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the server to find this file
    multiprocessing.set_forkserver_preload([__name__, "torch_symm._registration", "torch_symm._C"])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=WORLD,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=RESTARTS,
        monitor_interval=0.1,
        start_method="forkserver",
    )
    elastic_launch(config, worker)(*args)


@pytest.fixture(scope="module")
def launcher():
    """Runs launch() in one process, so that its server is started once."""

    def prepare():
        """Nothing."""

    pools = [RankPool(prepare)]

    def run(*args):
        if pools[-1].closed:  # after a failure
            pools.append(RankPool(prepare))
        pools[-1].run(1, launch, args, 60.0)

    yield run
    pools[-1].close()


@pytest.mark.long
@pytest.mark.parametrize("stage", ["before", "during", "after"])
@pytest.mark.parametrize("victims", [{0}, {1}, {1, 2}, {0, 1, 2}], ids=str)
def test_torchrun_restarts_of_any_ranks(victims, stage, tmp_path, launcher):
    result = tmp_path / "result"
    launcher(victims, stage, str(result))
    assert result.read_text() == f"{RESTARTS}\n"
