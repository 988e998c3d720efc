"""The examples of docs/examples/kernels against torch.distributed."""

import os

import example_kernels
import pytest
import torch
import torch.distributed as dist
from kernel_runs import NEEDS_TRITON, TIME_LIMIT

from harness import DEVICE, run_ranks
from programs import run_script_on_ranks

pytestmark = [NEEDS_TRITON, pytest.mark.timeout(150)]

ALLOWED = 1e-5  # as the examples say; float32, sums of up to 64 terms


def run_example(rank, name):
    return example_kernels.load(name).example(DEVICE)


def test_there_are_examples():
    assert len(example_kernels.NAMES) == 5


@pytest.mark.parametrize("name", example_kernels.NAMES)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_values(world_size, name):
    assert max(run_ranks(run_example, world_size, name, time_limit=TIME_LIMIT)) <= ALLOWED


@pytest.mark.parametrize("name", example_kernels.NAMES)
def test_length(name):
    """A page."""
    assert len((example_kernels.FOLDER / f"{name}.py").read_text().splitlines()) <= 110


def products_by_default(rank):
    """(the options that the fused example takes for a small product, how far it is)."""
    example, ranks = example_kernels.load("all_gather_matmul_ring"), dist.get_world_size()
    multiply = example.RingMatmul(64, 512, 64, DEVICE, torch.float32)
    whole = torch.arange(ranks * 64 * 512).view(ranks * 64, 512) % 7
    w = (torch.arange(512 * 64).view(512, 64) % 5).float()
    got = multiply(whole[rank * 64 :][:64].float(), w)
    return multiply.options, float((got - whole.float() @ w).abs().max())


@pytest.mark.cpu("in float32 its stages have no room on a GPU")
def test_the_matmuls_own_options():
    options = example_kernels.load("matmul_options")
    expected = options.SMALL_TILES._replace(senders=1)
    for chosen, distance in run_ranks(products_by_default, 2, time_limit=TIME_LIMIT):
        assert (tuple(chosen), distance) == (tuple(expected), 0.0)


# Rows of a rank, inner and columns, of two ranks; those that were measured first.
SHAPES = {
    (128, 1024, 1024): "SMALL_TILES",
    (512, 4096, 4096): "WIDE_TILES",
    (2048, 4096, 4096): "LARGE_TILES",
    (256, 4096, 8192): "SMALL_TILES",
    (512, 4096, 8192): "LARGE_TILES",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_options_by_shape(shape, monkeypatch):
    options = example_kernels.load("matmul_options")
    monkeypatch.setattr(options, "programs_of", lambda device: 132)
    chosen = options.fastest(shape[0], shape[2], 2, "cuda")
    assert chosen == getattr(options, SHAPES[shape])
    chosen.check(*shape)


@pytest.mark.parametrize("shape", [(24, 64, 96), (32, 48, 96), (32, 64, 80), (16, 32, 32)])
def test_options_that_do_not_fit(shape):
    """The last one's row tile is half of a part's chunk."""
    options = example_kernels.load("matmul_options").TINY_TILES
    if shape == (16, 32, 32):
        options = options._replace(chunk=512)
    with pytest.raises(ValueError, match="expected whole pieces of Options"):
        options.check(*shape)


def with_a_wrong_peer(rank, folder):
    """The comparison of an example sees a neighbour that is taken for another one."""
    wrong = (("peer, ctx, mask=inside)", "(peer + 1) % 3, ctx, mask=inside)"),)
    return example_kernels.load("all_reduce_one_shot", folder, wrong).example(DEVICE)


def test_a_wrong_peer_shows(tmp_path):
    found = run_ranks(with_a_wrong_peer, 3, str(tmp_path), time_limit=TIME_LIMIT)
    assert min(found) > ALLOWED


def same_bits(rank):
    """The one-shot all_reduce has the same bits on every rank."""
    x = torch.arange(700, device=DEVICE).float().mul(0.1 + rank).sin()
    got = example_kernels.load("all_reduce_one_shot").AllReduce(700, DEVICE)(x)
    everybody = got.new_empty(dist.get_world_size(), 700)
    dist.all_gather_into_tensor(everybody, got)
    return bool((everybody == got).all())


def test_all_ranks_have_the_same_bits():
    assert run_ranks(same_bits, 3, time_limit=TIME_LIMIT) == [True] * 3


def test_it_runs_as_a_program(monkeypatch):
    monkeypatch.syspath_prepend(example_kernels.FOLDER)  # as python does for a program
    path = example_kernels.FOLDER / "halo_exchange.py"
    env = dict(os.environ)  # conftest.py has set whether the interpreter runs kernels
    first, second = run_script_on_ranks(path, 2, "--device", DEVICE, env=env)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "Halo exchange beside" in first.stdout
