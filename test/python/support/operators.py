"""What the tests of torch.ops.symm_mem share: groups, and numbers whose sums are exact."""

import torch

ops = torch.ops.symm_mem

# By world size, the ranks of every group that calls the operators, one after the other.
GROUPS = {
    2: [[0, 1], [1]],
    3: [[0, 1, 2], [0, 2]],
    4: [[0, 1, 2, 3], [0, 2], [1, 3], [0, 1, 3]],
}


def whole_numbers(count: int, rank: int, salt: int, dtype=torch.float32) -> torch.Tensor:
    """In [-12, 12], distinct by rank and position: sums of up to 8 ranks are exact in bfloat16."""
    mixed = torch.arange(count) * 7 + torch.arange(count) // 25 * 3 + rank * 11 + salt * 5
    return (mixed % 25 - 12).to(dtype)


def total(count: int, ranks, salt: int, dtype=torch.float32) -> torch.Tensor:
    return (
        torch.stack([whole_numbers(count, r, salt, dtype).long() for r in ranks]).sum(0).to(dtype)
    )
