"""How a program ends that never destroyed its group: with its own exit code, in bounded time, and
without a crash, also while operations are in flight that can never complete."""

import pytest

from harness import BACKEND, DEVICE, GPUS, IS_SYMM

USE_DEVICE = f"torch.cuda.set_device(rank % {GPUS})" if GPUS else ""
PROLOGUE = f"""
import os, sys, time, torch, torch.distributed as dist
rank = int(sys.argv[1])
{USE_DEVICE}
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group({BACKEND!r}, store=store, rank=rank, world_size=2)
tensor = torch.full((1000,), rank + 1.0, device={DEVICE!r})
many = torch.ones(1 << (24 if tensor.is_cuda else 20), device=tensor.device)
dist.all_reduce(tensor)
assert tensor[7] == 3
"""

# An operation that is issued when a peer has left already is refused; that is another test.
EVERYBODY_HAS_ISSUED = """
store.set(f"issued{rank}", "yes")
store.wait([f"issued{r}" for r in range(2)])
"""
IN_FLIGHT = {
    "nothing": "",
    "all_reduce": """
if rank < 1:
    works = [dist.all_reduce(many.clone(), async_op=True) for _ in range(2)]
""",
    "irecv": """
few = torch.ones(5, device=tensor.device)
works = [dist.irecv(few, src=(rank + 1) % 2, tag=9)]
""",
    "isend": "works = [dist.isend(many, dst=(rank + 1) % 2, tag=9)]\n",
    "callback": """
import threading
held, issued = [], threading.Event()
if rank:
    store.wait(["given"])
first = dist.all_reduce(tensor, async_op=True).get_future()
if rank == 0:
    first = first.then(lambda future: issued.wait(1) and held[0].wait())
    store.set("given", "yes")
held.append(dist.all_reduce(many, async_op=True).get_future())
issued.set()
""",
    "unwaited": "works = [dist.all_reduce(many, async_op=True)]\n",
}
ENDINGS = {
    "return": ("", 0),
    "sys_exit": ("sys.exit(3)\n", 3),
    "exception": ("raise KeyError('nobody catches this')\n", 1),
    "os_exit": ("os._exit(5)\n", 5),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("in_flight", IN_FLIGHT)
@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_code(run_script, ending, in_flight):
    if not IS_SYMM and in_flight != "nothing" and ending != "os_exit":
        pytest.skip("gloo waits for its operations, or aborts, at the end of a process")
    code_text, code = ENDINGS[ending]
    operations = IN_FLIGHT[in_flight]
    if operations:
        operations += EVERYBODY_HAS_ISSUED
    at_its_end = "print(time.monotonic(), flush=True)\n"
    program = PROLOGUE + operations + at_its_end + code_text
    results = run_script(program, world_size=2, limit=40)
    for rank, result in enumerate(results):
        where = f"rank {rank}: {result}"
        assert result.exit_code == code, where
        assert "terminate called" not in result.stderr, where
        assert "Fatal Python error" not in result.stderr, where
        assert result.ended_at - float(result.stdout) < 10, where
        if ending == "exception":
            assert "KeyError: 'nobody catches this'" in result.stderr, where


def test_ranks_that_end_one_after_the_other(run_script):
    """Rank r ends only when rank r-1's process is gone: nobody needs a peer to end."""
    text = (
        PROLOGUE
        + """
def ended(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True

store.set(f"pid{rank}", str(os.getpid()))
if rank:
    before = int(store.get(f"pid{rank - 1}"))
    while not ended(before):
        pass
"""
    )
    for rank, result in enumerate(run_script(text, world_size=2, limit=20)):
        assert result.exit_code == 0, f"rank {rank}: {result}"


def test_group_in_a_global_and_in_a_cycle(run_script):
    text = (
        PROLOGUE
        + """
class Holder:
    pass

holder = Holder()
holder.me, holder.group = holder, dist.new_group([0, 1])
dist.all_reduce(tensor, group=holder.group)
backend = dist.group.WORLD._get_backend(tensor.device)
del holder
"""
    )
    for rank, result in enumerate(run_script(text, world_size=2, limit=20)):
        assert result.exit_code == 0, f"rank {rank}: {result}"
        assert "terminate called" not in result.stderr, result.stderr
