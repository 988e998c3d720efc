"""What pieces by copy engines need, without a GPU: places in memory, and the sum of parts."""

import pytest
import torch

import model
from fused import FLOATS


def test_places_follow_each_other_and_keep_apart():
    from torch_symm.ops import boxes

    memory = [torch.zeros(4096, dtype=torch.uint8) for _ in range(2)]
    of_call = boxes.Boxes(None, memory, [])
    shapes = [
        ((2, 3), torch.float32),
        ((5,), torch.uint8),
        ((1, 2, 7), torch.bfloat16),
        ((), torch.float64),
    ]
    places = [of_call.take(shape, dtype) for shape, dtype in shapes]
    for number, (place, (shape, dtype)) in enumerate(zip(places, shapes, strict=True), 1):
        for rank, part in enumerate(place):
            assert (part.shape, part.dtype) == (shape, dtype)
            part.fill_(10 * rank + number)
    begin = 0
    for number, place in enumerate(places, 1):
        for rank, part in enumerate(place):
            assert part.data_ptr() == memory[rank].data_ptr() + begin
            assert bool((part == 10 * rank + number).all())
        begin += boxes.aligned(place[0].nbytes)
        assert begin % 256 == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=model.name)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_parts_are_added_as_the_group_adds(size, dtype):
    """In the order of ranks, rounded once: the same bits as a reduction."""
    from torch_symm.ops import pieces

    generator = torch.Generator().manual_seed(size)
    parts = torch.randn(size, 1000, generator=generator, dtype=torch.float64).to(dtype)
    output = torch.empty(1000, dtype=dtype)
    pieces.add_up(output, list(parts))
    assert torch.equal(output, model.reduced(list(parts), "SUM"))
    if size > 2 and dtype.itemsize >= 4:  # shorter ones are exact in what they are added in
        assert not torch.equal(output, model.reduced(list(parts.flip(0)), "SUM"))
