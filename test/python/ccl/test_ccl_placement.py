"""torch_symm.ccl: where tensors must stand, what is staged or refused, and workspaces."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

import model
from ccl_calls import PAIRS, TABLE, WRITTEN, Tensors, carry_out
from errors import not_raised
from harness import (
    DEVICE,
    ON_CUDA,
    PROCESSES,
    WORLD_SIZE,
    check,
    device_of_rank,
    expect_no_mismatch,
    run_ranks,
    synchronize,
)

pytestmark = pytest.mark.timeout(120)

# -- Placement -------------------------------------------------------------------------------------


def written_remotely(rank, name, algorithm):
    """The paths of an output that peers write. On the CPU no algorithm has them, so there the table
    is told that this one does; the memory in which it then works shows what was staged."""
    import dataclasses

    from torch_symm import ccl
    from torch_symm.ccl import placement

    problems, ranks = [], list(range(dist.get_world_size()))
    if not ON_CUDA:
        find = placement.find

        def told(*key):
            row = find(*key)
            return row and dataclasses.replace(row, must_be_symmetric=("output",))

        placement.find = told
    config = ccl.Config(algorithm=algorithm)
    workspace = ccl.make_workspace(8 * 1027 * len(ranks), device=device_of_rank())
    for salt, given in enumerate((None, workspace, None, workspace)):
        if given is not None:
            given._stages.output.fill_(0x5A)
        c = Tensors(None, ranks, rank, salt=salt, async_op=salt > 1)
        carry_out(c, name, config, workspace=given)
        problems += c.finish()
        if given is not None and (given._stages.output[:1027] == 0x5A).all():
            problems.append(f"{name}: the output did not go through the workspace")
    # Refused where the tensors are not symmetric, and nothing is lost or sent.
    output = torch.full((1027 * len(ranks),), 7.0, device=DEVICE)
    given = torch.ones(1027 * len(ranks), device=DEVICE)
    if name == "all_gather":
        given = given[:1027]
    if name == "reduce_scatter":
        output = output[:1027]
    root = {"group_src": rank} if name == "broadcast" else {}
    call = getattr(ccl, name)
    parts = [name, "output", f"'{algorithm}'", "peers write the output", "strict=True"]
    parts += ["torch_symm.empty()", "torch_symm.as_symmetric(", DEVICE]
    settings = {"config": config, "strict": True, **root}
    problems += not_raised("ValueError", parts, call, output, given, **settings)
    problems += model.mismatch("a refused call's output", output, torch.full_like(output, 7.0))
    c = Tensors(None, ranks, rank, salt=5)
    carry_out(c, name, None)
    problems += c.finish()
    # An empty output is written by nobody.
    empty = torch.empty(0, device=DEVICE)
    call(empty, empty, config=config, strict=True, **dict.fromkeys(root, 0))
    return problems


WRITTEN_PAIRS = [
    (name, algorithm)
    for name, algorithm in PAIRS
    if (TABLE[DEVICE][name][algorithm] == WRITTEN if ON_CUDA else name != "reduce")
]


@pytest.mark.parametrize(("name", "algorithm"), WRITTEN_PAIRS)
def test_outputs_that_peers_write(name, algorithm):
    # The group's own workspace and the told table stay with the ranks, so they are new ones.
    expect_no_mismatch(run_ranks(written_remotely, 3, name, algorithm, fresh=PROCESSES))


def without_multicast(rank, name):
    """multimem is refused with the reason, by strict calls and by those that stage."""
    import torch_symm
    from torch_symm import ccl

    problems, size = [], dist.get_world_size()
    share, whole = (torch_symm.zeros(n, device=DEVICE) for n in (64, 64 * size))
    for tensor in (share, whole):
        torch_symm.as_symmetric(tensor)
    output = whole if name == "all_gather" else share
    given = whole if name == "reduce_scatter" else share
    root = {"src": 0} if name == "broadcast" else {}
    config = ccl.Config(algorithm="multimem")
    for strict in (True, False):
        call = getattr(ccl, name)
        settings = {"config": config, "strict": strict, **root}
        parts = ["multicast address"]
        problems += not_raised("NotImplementedError", parts, call, output, given, **settings)
    plain = torch.zeros(64 * size, device=DEVICE)
    large = name in ("all_gather", "reduce_scatter")
    needed = "input" if name == "reduce_scatter" else "output"
    tensors = {"output": output, "input": given, needed: plain if large else plain[:64]}
    parts = [f"{name}: {needed}: the algorithm"]
    return problems + not_raised(
        "ValueError", parts, call, **tensors, **{**settings, "strict": True}
    )


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_multimem_needs_multicast(name):
    env = {"SYMM_DISABLE_MULTICAST": "1"}
    expect_no_mismatch(run_ranks(without_multicast, WORLD_SIZE, name, env=env))


def through_the_workspace(rank, name, algorithm):
    """Inputs go through a given workspace exactly where peers read them and they are plain."""
    from torch_symm import ccl

    problems, ranks = [], list(range(dist.get_world_size()))
    workspace = ccl.make_workspace(8 * 1027 * len(ranks), device=device_of_rank())
    readable = bool(TABLE[DEVICE][name][algorithm][0]) and (name, algorithm) != (
        "all_reduce",
        "two_shot",  # reads in place only what it also writes
    )
    for salt, symmetric in enumerate((False, True)):
        workspace._stages.input.fill_(0x5A)
        synchronize()
        dist.barrier()
        c = Tensors(None, ranks, rank, salt=salt)
        carry_out(c, name, ccl.Config(algorithm=algorithm), symmetric, workspace=workspace)
        problems += c.finish()
        used = bool((workspace._stages.input != 0x5A).any())
        has_input = name != "broadcast" or rank == c.root
        if used != (readable and not symmetric and has_input):
            problems.append(f"symmetric={symmetric}: through the workspace: {used}")
    return problems


@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
def test_inputs_that_peers_read(name, algorithm):
    check(through_the_workspace, 3, name, algorithm)


# -- Workspaces ------------------------------------------------------------------------------------


def workspaces(rank):
    from torch_symm import ccl

    problems = []
    group = dist.new_group([0, 1])
    tensor = torch.ones(1000, device=DEVICE)
    place = device_of_rank()

    def expect(*args, **kwargs):
        problems.extend(not_raised(*args, **kwargs))

    def use(workspace):
        ccl.all_reduce(torch.empty_like(tensor), tensor, workspace=workspace)

    expect("TypeError", ["workspace", "Tensor"], use, tensor)
    small = ccl.make_workspace(3999, device=place)
    expect("ValueError", ["all_reduce", "workspace", "4000", "3999"], use, small)
    other = ccl.make_workspace(4000, group, place)
    expect("ValueError", ["workspace", repr(group.group_name)], use, other)
    exact = ccl.make_workspace(4000, device=DEVICE)
    use(exact)
    elsewhere = ccl.make_workspace(4000, device=place)
    elsewhere.device = torch.device("meta")
    expect("ValueError", ["workspace", "meta", str(place)], use, elsewhere)
    if exact.device != place or exact.nbytes != 4000 or exact.group is not dist.group.WORLD:
        problems.append(f"{exact}")
    expect("ValueError", ["nbytes", "got -1"], ccl.make_workspace, -1)
    expect("TypeError", ["nbytes", "'4'"], ccl.make_workspace, "4")
    wrong = f"{4000 + rank} on rank {rank}"
    expect("ValueError", ["nbytes", wrong], ccl.make_workspace, 4000 + rank, device=place)
    use(ccl.make_workspace(4000, device=place))
    ccl.make_workspace(0, device=place)
    return problems


def test_workspaces():
    check(workspaces, 2)


def dropped_workspaces(rank):
    from torch_symm import ccl

    def address_space():
        return sum(1 for line in open("/proc/self/maps") if "memfd" in line)

    counts = []
    for _ in range(30):
        workspace = ccl.make_workspace(1 << 16)
        ccl.all_reduce(torch.ones(4), torch.ones(4), workspace=workspace)
        counts.append(address_space())
        del workspace
    return [] if counts[-1] <= counts[4] else [f"mappings grow: {counts}"]


@pytest.mark.cpu("counts mappings of the host")
def test_dropped_workspaces_are_given_back():
    check(dropped_workspaces, 2)


def own_workspace(rank):
    """A group that has made its own workspace is freed with it once it is destroyed."""
    from torch_symm.ccl import workspace

    group = dist.new_group()
    made = workspace.own(group, torch.device("cpu"), 1 << 16, "a call")
    problems = []
    if workspace.own(group, torch.device("cpu"), 1 << 10, "a call") is not made:
        problems.append("the group's own workspace is made twice")
    kept = {"the group": weakref.ref(group), "its workspace": weakref.ref(made)}
    dist.destroy_process_group(group)
    del group, made
    gc.collect()
    return problems + [f"{name} is still there" for name, what in kept.items() if what()]


@pytest.mark.cpu("makes it on the host")
def test_a_destroyed_group_is_freed_with_its_own_workspace():
    check(own_workspace, 2)
