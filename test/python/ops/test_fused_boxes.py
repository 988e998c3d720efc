"""What pieces by copy engines need, without a GPU: places in memory, and the sum of parts."""

import pytest
import torch

import model
from fused import FLOATS


def test_parcels_follow_each_other_and_keep_apart():
    from torch_symm.ops import boxes

    memory = torch.zeros(4096, dtype=torch.uint8)
    parcels = boxes.Parcels(memory)
    shapes = [
        ((2, 3), torch.float32),
        ((5,), torch.uint8),
        ((1, 2, 7), torch.bfloat16),
        ((), FLOATS[3]),
    ]
    parts = [parcels.take(shape, dtype) for shape, dtype in shapes]
    for number, (part, (shape, dtype)) in enumerate(zip(parts, shapes, strict=True), 1):
        assert part.shape == shape
        assert part.dtype == dtype
        assert part.data_ptr() % 256 == memory.data_ptr() % 256
        part.fill_(number)
    for number, part in enumerate(parts, 1):
        assert bool((part == number).all())
    used = sum(boxes.aligned(part.nbytes) for part in parts)
    assert parts[-1].data_ptr() + 256 == memory.data_ptr() + used


@pytest.mark.parametrize("dtype", FLOATS, ids=model.name)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_parts_are_added_as_the_group_adds(size, dtype):
    """In the order of ranks, rounded once: the same bits as a reduction."""
    from torch_symm.ops import pieces

    generator = torch.Generator().manual_seed(size)
    parts = torch.randn(size, 1000, generator=generator, dtype=torch.float64).to(dtype)
    output = torch.empty(1000, dtype=dtype)
    pieces._add_up(output, parts)
    assert torch.equal(output, model.reduced(list(parts), "SUM"))
    if size > 2 and dtype.itemsize >= 4:  # shorter ones are exact in what they are added in
        assert not torch.equal(output, model.reduced(list(parts.flip(0)), "SUM"))
