"""Registration for symmetric use: `as_symmetric(tensor, group, symmetric=True)`."""

import warnings

import torch
import torch.distributed as dist

import model
import torch_symm
from harness import DEVICE, WORLD_SIZE, check


def all_reduce_works(rank, what):
    tensor = torch.full((9,), rank + 1.0, device=DEVICE)
    dist.all_reduce(tensor)
    total = float(WORLD_SIZE * (WORLD_SIZE + 1) // 2)
    return model.mismatch(f"all_reduce {what}", tensor, torch.full((9,), total))


def register(rank):
    """Memory of symm itself is registered in place, the first time and once it has joined."""
    problems = []
    for joined_before in (False, True):
        tensor = torch_symm.full(1000, rank + 1.0, device=DEVICE)
        if joined_before:
            torch_symm.as_symmetric(tensor)
        registered = [torch_symm.as_symmetric(tensor, symmetric=True) for _ in range(2)]
        if any(one is not tensor for one in registered):
            problems.append(f"copied, joined before: {joined_before}")
        dist.all_reduce(tensor)
        total = float(WORLD_SIZE * (WORLD_SIZE + 1) // 2)
        problems += model.mismatch("registered", tensor, torch.full((1000,), total))
    return problems


def test_registration_in_place():
    check(register, WORLD_SIZE)


def register_plain_memory(rank):
    """What cannot be shared is copied into memory that is registered."""
    plain = torch.full((100,), float(rank), device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = torch_symm.as_symmetric(plain, symmetric=True)
    problems = model.mismatch("copy", copy, plain)
    if copy is plain or not torch_symm.is_symmetric(copy, dist.group.WORLD):
        problems.append("the copy is not symmetric")
    return problems + all_reduce_works(rank, "after it")


def test_plain_memory_is_copied():
    check(register_plain_memory, WORLD_SIZE)


def register_on_some_ranks(rank):
    """An error on every rank, after which the group goes on."""
    tensor, problems = torch_symm.empty(100, device=DEVICE), []
    try:
        torch_symm.as_symmetric(tensor, symmetric=rank == 1)
        problems.append("no error")
    except ValueError as error:
        if "same symmetric" not in str(error) or "True on rank 1" not in str(error):
            problems.append(str(error))
    if torch_symm.as_symmetric(tensor, symmetric=True) is not tensor:
        problems.append("copied afterwards")
    return problems + all_reduce_works(rank, "after it")


def test_every_rank_must_register():
    check(register_on_some_ranks, WORLD_SIZE)
