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
