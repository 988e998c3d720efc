"""torch_symm.ccl: a call's config is its plan; wrong configs and wrong arguments raise by name."""

import pytest
import torch
import torch.distributed as dist

import model
from ccl_calls import CPU, LEAST_CHUNK, TABLE
from errors import message_of, not_raised
from harness import (
    DEVICE,
    ON_CUDA,
    check,
    expect_no_mismatch,
    run_ranks,
)

pytestmark = pytest.mark.timeout(120)

# -- The plan --------------------------------------------------------------------------------------


def different_plans(rank, name, mine, theirs):
    from torch_symm import ccl

    n = 4 * dist.get_world_size()
    config = mine if rank == 0 else theirs
    output, given = torch.zeros(n, device=DEVICE), torch.ones(n, device=DEVICE)
    if name == "reduce_scatter":
        output = output[:4]
    call = getattr(ccl, name)
    config = None if config is None else ccl.Config(**config)
    return message_of(dist.DistBackendError, call, output, given, config=config)


PLANS = [
    ("all_reduce", {"algorithm": "ring"}, {"algorithm": "two_shot"}, ["ring)", "two_shot)"]),
    ("all_reduce", {"algorithm": "two_shot"}, None, ["two_shot)", "one_shot)"]),
    ("reduce_scatter", {"algorithm": "pipelined"}, {}, ["pipelined)", "one_shot)"]),
    (
        "all_reduce",
        {"algorithm": "ring", "chunk_bytes": 16384},
        {"algorithm": "ring", "chunk_bytes": 32768},
        ["with chunk_bytes", "16384", "32768"],
    ),
]


@pytest.mark.cpu("a GPU's calls return before they have met")
@pytest.mark.parametrize(("name", "mine", "theirs", "parts"), PLANS)
def test_a_config_is_the_plan_and_ranks_compare_it(name, mine, theirs, parts):
    """What ranks tell each other of a call is what they carry out."""
    for text in run_ranks(different_plans, 2, name, mine, theirs, fresh=True):
        assert "different calls at seq 1" in text
        for part in parts:
            assert part in text


@pytest.mark.cpu("a GPU's calls return before they have met")
def test_a_config_comes_before_the_environment():
    plan = {"algorithm": "two_shot"}
    for text in run_ranks(different_plans, 2, "all_reduce", plan, None, env={"SYMM_ALGO": "ring"}):
        assert "ring)" in text
        assert "two_shot)" in text


def wrong_configs(rank):
    from torch_symm import ccl

    problems = []

    def expect(*args, **kwargs):
        problems.extend(not_raised(*args, **kwargs))

    every = ["auto", "one_shot", "two_shot", "ring", "pipelined", "ll", "copy_engine"]
    expect("ValueError", ["algorithm", "'rings'", *every], ccl.Config, algorithm="rings")
    expect("TypeError", ["algorithm", "None"], ccl.Config, algorithm=None)
    expect("TypeError", ["channels", "2.0"], ccl.Config, channels=2.0)
    expect("ValueError", ["channels", "got 0"], ccl.Config, channels=0)
    expect("ValueError", ["chunk_bytes", "got -1"], ccl.Config, chunk_bytes=-1)
    size = dist.get_world_size()
    small, large = torch.ones(8, device=DEVICE), torch.ones(8 * size, device=DEVICE)

    def refused(name, parts, **config):
        output, given = (large, small) if name == "all_gather" else (small, small)
        if name == "reduce_scatter":
            given = large
        root = {"reduce": {"dst": 0}, "broadcast": {"src": 0}}.get(name, {})
        chosen = ccl.Config(**config)
        for async_op in (False, True):
            call = getattr(ccl, name)
            expect(
                "ValueError",
                [name, *parts],
                call,
                output,
                given,
                config=chosen,
                async_op=async_op,
                **root,
            )

    place = "on a GPU" if ON_CUDA else "on the host"
    for name, row in TABLE[DEVICE].items():
        if name == "all_to_all":
            continue
        for algorithm in every[1:]:
            if algorithm not in row:
                choices = ["config.algorithm", *row, place, f"got {algorithm}"]
                refused(name, choices, algorithm=algorithm)
        if ON_CUDA:
            refused(name, ["config.channels", "1 to 64", "got 65"], channels=65)
            refused(name, ["config.chunk_bytes", "none on a GPU", "65536"], chunk_bytes=65536)
        else:
            refused(name, ["config.channels", "on the host", "got 4"], channels=4)
            least = ["config.chunk_bytes", "128", str(LEAST_CHUNK)]
            refused(name, [*least, f"got {LEAST_CHUNK // 2}"], chunk_bytes=LEAST_CHUNK // 2)
            refused(name, ["config.chunk_bytes", "got 16385"], chunk_bytes=16385)
            refused(name, ["config.chunk_bytes", "got 1073741824"], chunk_bytes=1 << 30)
    if not ON_CUDA:
        refused(
            "all_reduce",
            ["config.chunk_bytes", "to 65536"],
            algorithm="one_shot",
            chunk_bytes=131072,
        )
    expect("TypeError", ["config", "str"], ccl.all_reduce, small, small, config="ring")
    # Nothing was sent: the group goes on.
    total = torch.empty_like(small)
    ccl.all_reduce(total, small)
    problems += model.mismatch("afterwards", total, torch.full((8,), float(size)))
    return problems


def test_wrong_configs():
    check(wrong_configs, 2)


# -- Wrong arguments -------------------------------------------------------------------------------


def wrong_arguments(rank):
    from torch_symm import ccl

    problems, size = [], dist.get_world_size()

    def tensor(*shape, dtype=torch.float32, device=DEVICE):
        return torch.ones(*shape, dtype=dtype, device=device)

    def expect(name, kind, argument, parts, output, given, **options):
        root = {"reduce": {"dst": rank}, "broadcast": {"src": rank}}.get(name, {})
        parts = [f"{name}: {argument}", *parts]
        problems.extend(
            not_raised(kind, parts, getattr(ccl, name), output, given, **root, **options)
        )

    for name in CPU:
        n_in = 4 * size if name in ("reduce_scatter", "all_to_all") else 4
        n_out = 4 * size if name in ("all_gather", "all_to_all") else 4
        output, given = tensor(n_out), tensor(n_in)
        # The one that is looked at first says what the other must be.
        later = "input" if name in ("broadcast", "reduce_scatter") else "output"
        expect(name, "TypeError", "output", ["None"], None, given)
        expect(name, "TypeError", "input", ["None"], output, None)
        expect(name, "TypeError", "input", ["list"], output, [given])
        expect(name, "TypeError", "output", ["int"], 5, given)
        half = output.to(torch.float16)
        expect(name, "ValueError", later, ["dtype", "float16"], half, given)
        expect(name, "ValueError", "output", ["contiguous"], tensor(n_out, 2)[:, 0], given)
        if name != "all_to_all":
            text = "shape" if name in ("all_reduce", "reduce", "broadcast") else "elements"
            wrong = later if text == "elements" else "output"
            expect(name, "ValueError", wrong, [text], tensor(n_out + 1), given)
        else:
            expect(name, "ValueError", "output", ["divide"], tensor(n_out + 1), given)
        sparse = output.to_sparse()
        expect(name, "NotImplementedError", "output", ["Sparse"], sparse, given)
        if ON_CUDA:
            expect(name, "ValueError", later, ["cpu", "cuda"], output.cpu(), given)
        meta = tensor(n_in, device="meta")
        expect(name, "NotImplementedError", "input", ["meta"], output, meta)
        root = {"reduce": {"dst": 0}, "broadcast": {"src": 0}}.get(name, {})
        parts = [f"{name}: group"]
        problems += not_raised("", parts, getattr(ccl, name), output, given, group=7, **root)
        base = tensor(n_in + n_out)
        apart = base[1 : 1 + n_out]
        expect(name, "ValueError", "input and output", ["overlap"], apart, base[:n_in])
    expect(
        "all_to_all",
        "ValueError",
        "output_split_sizes",
        ["sum"],
        tensor(4),
        tensor(4),
        output_split_sizes=[1] * size,
    )
    total = torch.empty(3, device=DEVICE)
    ccl.all_reduce(total, tensor(3))
    problems += model.mismatch("afterwards", total, torch.full((3,), float(size)))
    return problems


def test_wrong_arguments():
    check(wrong_arguments, 2)


def uneven_splits(rank):
    from torch_symm import ccl

    size, problems = dist.get_world_size(), []
    rows = [[(sender + 2 * receiver) % 3 for receiver in range(size)] for sender in range(size)]
    mine = model.make_input(torch.int64, 7 * sum(rows[rank]), rank, 3).view(-1, 7).to(DEVICE)
    theirs = [rows[sender][rank] for sender in range(size)]
    got = torch.full((sum(theirs), 7), -1, dtype=torch.int64, device=DEVICE)
    ccl.all_to_all(got, mine, theirs, rows[rank])
    parts = []
    for sender in range(size):
        sent = model.make_input(torch.int64, 7 * sum(rows[sender]), sender, 3).view(-1, 7)
        start = sum(rows[sender][:rank])
        parts.append(sent[start : start + rows[sender][rank]])
    problems += model.mismatch("uneven", got.reshape(-1), torch.cat(parts).reshape(-1))
    return problems


def test_uneven_splits():
    check(uneven_splits, 3)


def other_backends(rank):
    from torch_symm import ccl

    tensor = torch.ones(2)
    problems = []
    for call in (
        lambda: ccl.all_reduce(tensor, tensor),
        lambda: ccl.make_workspace(10),
        lambda: ccl.device_barrier(),
        lambda: ccl.device_barrier(device="cpu"),
    ):
        problems += not_raised("NotImplementedError", ["symm"], call)
    return problems


@pytest.mark.cpu("gloo groups are tested on the CPU")
def test_groups_of_other_backends_are_refused():
    expect_no_mismatch(run_ranks(other_backends, 2, backend="gloo"))


def coalesced(rank):
    from torch_symm import ccl

    tensor = torch.ones(2, device=DEVICE)
    with dist.distributed_c10d._coalescing_manager(None, None, False):
        problems = not_raised("NotImplementedError", ["coalescing"], ccl.all_reduce, tensor, tensor)
        dist.all_reduce(tensor)
    return problems


def test_coalescing_blocks_are_refused():
    check(coalesced, 2)
