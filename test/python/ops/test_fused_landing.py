"""The places in memory of pieces that come by copy engines, without a GPU."""

import torch


def test_places_follow_each_other_and_keep_apart():
    from torch_symm.ops.landing import Landing, aligned

    memory = torch.zeros(4096, dtype=torch.uint8)
    landing = Landing(memory)
    shapes = [
        ((2, 3), torch.float32),
        ((5,), torch.uint8),
        ((1, 2, 7), torch.bfloat16),
        ((), torch.float64),
    ]
    parts = [landing.take(shape, dtype) for shape, dtype in shapes]
    for number, (part, (shape, dtype)) in enumerate(zip(parts, shapes, strict=True), 1):
        assert part.shape == shape
        assert part.dtype == dtype
        assert part.data_ptr() % 256 == memory.data_ptr() % 256
        part.fill_(number)
    for number, part in enumerate(parts, 1):
        assert bool((part == number).all())
    used = sum(aligned(part.nbytes) for part in parts)
    assert parts[-1].data_ptr() + 256 == memory.data_ptr() + used
