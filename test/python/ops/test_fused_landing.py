"""The places in memory of pieces that come by copy engines, without a GPU."""

import torch


def test_places_follow_each_other_and_keep_apart():
    from torch_symm.ops.landing import Places, aligned

    memories = [torch.zeros(4096, dtype=torch.uint8) for _ in range(3)]
    memory, places = memories[1], Places(memories)
    shapes = [
        ((2, 3), torch.float32),
        ((5,), torch.uint8),
        ((1, 2, 7), torch.bfloat16),
        ((), torch.float64),
    ]
    of_ranks = [places.take(shape, dtype) for shape, dtype in shapes]
    for taken in of_ranks:
        offsets = [t.data_ptr() - m.data_ptr() for t, m in zip(taken, memories, strict=True)]
        assert offsets == offsets[:1] * 3
    parts = [taken[1] for taken in of_ranks]
    for number, (part, (shape, dtype)) in enumerate(zip(parts, shapes, strict=True), 1):
        assert part.shape == shape
        assert part.dtype == dtype
        assert part.data_ptr() % 256 == memory.data_ptr() % 256
        part.fill_(number)
    for number, part in enumerate(parts, 1):
        assert bool((part == number).all())
    used = sum(aligned(part.nbytes) for part in parts)
    assert parts[-1].data_ptr() + 256 == memory.data_ptr() + used
