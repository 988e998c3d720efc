"""Pieces that come by copy engines, without a GPU: their places in memory, and on whose streams a
call in pieces is put."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from harness import IS_SYMM, check


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


class FakeCuda:
    """In place of what torch.cuda says of the current device: one stream a device, and of those
    the one of `captured` is being captured."""

    def __init__(self, captured):
        self.now = "another device"
        self.captured = captured
        self.waits = []

    @contextlib.contextmanager
    def device(self, device):
        before, self.now = self.now, str(device)
        yield
        self.now = before

    def current_stream(self, device=None):
        name = self.now if device is None else str(device)
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.waits.append((name, other.name)),
            record_event=lambda: f"event of {name}",
        )

    def is_current_stream_capturing(self):
        return self.now == self.captured

    def side_stream(self):
        return SimpleNamespace(
            name="side", wait_stream=lambda other: self.waits.append(("side", other.name))
        )


def in_pieces(rank):
    """The tensors' device is the CPU here, whose backend has the wrapper of DETAIL around it."""
    from torch_symm.ops import landing

    group, device = dist.group.WORLD, torch.device("cpu")
    problems, met = [], []
    if not hasattr(group._get_backend(device), "wrapped_pg"):
        problems.append("the backend is not wrapped, so this shows nothing")
    landing.load = lambda: SimpleNamespace(device_barrier=lambda *given: met.append(given))
    for captured in ("another device", "cpu"):
        cuda = FakeCuda(captured)
        landing.torch = SimpleNamespace(cuda=cuda)
        memory = torch.zeros(64, dtype=torch.uint8)
        kept = landing._Kept([cuda.side_stream()], None, [landing._Memory(None, [memory] * 2, [])])
        landing._Kept.of = lambda *_, kept=kept: kept
        with landing.exchange(group, device, 64, "a call", 7):
            if cuda.now != "cpu":
                problems.append(f"the block is on {cuda.now}")
        if cuda.waits != [("side", "cpu"), ("cpu", "side")] or cuda.now != "another device":
            problems.append(f"waits: {cuda.waits}, then on {cuda.now}")
        ended = None if captured == "cpu" else "event of cpu"
        if kept.ended != ended:
            problems.append(f"{captured} is captured: {kept.ended}, not {ended}")
    for backend, place, alike in met:
        if type(backend).__name__ != "ProcessGroupSymm" or (place, alike) != (device, 7):
            problems.append(f"the barrier got {backend}, {place}, {alike}")
    return problems if len(met) == 2 else [*problems, f"met {len(met)} times"]


@pytest.mark.skipif(not IS_SYMM, reason="for groups of symm")
@pytest.mark.cpu("stands in for torch.cuda")
def test_a_call_is_on_the_streams_of_its_tensors_device():
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    check(in_pieces, 2, env=env, before_init=dist.set_debug_level_from_env)
