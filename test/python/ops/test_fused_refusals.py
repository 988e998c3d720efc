"""torch_symm.ops: a wrong argument is named before anything is sent, and the group goes on."""

import pytest
import torch
import torch.distributed as dist

from errors import message_of, not_raised
from fused import small
from harness import DEVICE, IS_SYMM, ON_CUDA, check

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not IS_SYMM, reason="for groups of symm"),
]

FP8 = torch.float8_e4m3fn


def ones(*shape, dtype=torch.float32, device=DEVICE):
    return torch.ones(shape, dtype=dtype, device=device)


def gather_cases(ops):
    def gather(a=None, b=None, dim=0, **options):
        a, b = ones(4, 6) if a is None else a, ones(6, 8) if b is None else b
        return lambda: ops.all_gather_matmul(a, b if isinstance(b, list) else [b], dim, **options)

    yield gather(a=ones(6)), ["a_shard", "two dimensions", "(6,)"]
    yield gather(b=[]), ["bs", "at least one"]
    yield gather(b=ones(6)), ["bs[0]", "a matrix", "(6,)"]
    yield gather(b=[ones(6, 8), ones(5, 8)]), ["bs[1]", "6 rows", "(5, 8)"]
    yield gather(dim=1), ["bs[0]", "12 rows", "(6, 8)"]
    yield gather(dim=2), ["gather_dim", "[-2, 2)", "2"]
    yield gather(dim=-3), ["gather_dim", "-3"]
    yield gather(b=ones(6, 8, dtype=torch.float64)), ["bs[0]", "float32", "float64"]
    yield gather(b=ones(6, 8, device="meta")), ["bs[0]", DEVICE, "meta"]
    yield gather(a=ones(4, 6).to_sparse()), ["a_shard", "dense", "sparse"]
    yield gather(b=ones(6, 8).to_sparse()), ["bs[0]", "dense", "sparse"]
    yield gather(a=ones(4, 6) > 0, b=ones(6, 8) > 0), ["a_shard", "dtype", "bool"]
    yield gather(pieces=0), ["pieces", "at least 1", "0"]
    yield gather(group=7), ["group"]
    yield gather(group="no such group"), ["group", "no such group"]


def reduce_cases(ops):
    def scatter(a=None, b=None, op="sum", dim=0, **options):
        a, b = ones(4, 6) if a is None else a, ones(6, 8) if b is None else b
        return lambda: ops.matmul_reduce_scatter(a, b, op, dim, **options)

    def reduce(a=None, b=None, op="sum", **options):
        a, b = ones(4, 6) if a is None else a, ones(6, 8) if b is None else b
        return lambda: ops.matmul_all_reduce(a, b, op, **options)

    for call in (scatter, reduce):
        yield call(a=ones(6)), ["a", "two dimensions", "(6,)"]
        yield call(b=ones(2, 6, 8)), ["b", "a matrix", "(2, 6, 8)"]
        yield call(b=ones(7, 8)), ["b", "6 rows", "(7, 8)"]
        yield call(op="max"), ["op", "'max'"]
        yield call(op=dist.ReduceOp.PRODUCT), ["op", "PRODUCT"]
        yield call(b=ones(6, 8, dtype=torch.float64)), ["b", "float32", "float64"]
        yield call(a=ones(4, 6) > 0, b=ones(6, 8) > 0), ["a", "dtype", "bool"]
        yield call(pieces=-1), ["pieces", "-1"]
    yield scatter(a=ones(5, 6)), ["scatter_dim", "world size 2", "5", "(5, 8)"]
    yield scatter(b=ones(6, 3), dim=1), ["scatter_dim", "3", "(4, 3)"]
    yield scatter(dim=2), ["scatter_dim", "[-2, 2)", "2"]
    if ON_CUDA:
        yield reduce(a=ones(4, 6).int(), b=ones(6, 8).int()), ["a", "dtype", "int32"]


def norm_cases(ops):
    def norm(x=None, weight=None, residual=None, **options):
        x, weight = ones(4, 6) if x is None else x, ones(6) if weight is None else weight
        return lambda: ops.all_reduce_rms_norm(x, weight, 1e-5, None, residual, **options)

    yield norm(x=ones()), ["x", "one dimension"]
    yield norm(x=ones(4, 6).int(), weight=ones(6).int()), ["x", "float16", "int32"]
    yield norm(weight=ones(5)), ["weight", "(6,)", "(5,)"]
    yield norm(weight=ones(6).double()), ["weight", "float32", "float64"]
    yield norm(residual=ones(6)), ["residual", "(4, 6)", "(6,)"]
    yield norm(residual=ones(4, 6).half()), ["residual", "float32", "float16"]
    yield norm(pieces=0), ["pieces"]


def scaled_cases(ops):
    eight, one = ones(32, 16).to(FP8), ones(1)
    turned = eight.t()

    def scatter(a=eight, b=turned, a_scale=one, b_scale=one, dim=0, **options):
        return lambda: ops.scaled_matmul_reduce_scatter(
            a, b, a_scale, b_scale, "sum", dim, **options
        )

    def gather(a=eight, b=turned, a_scale=one, scales=(one,), dim=0):
        return lambda: ops.all_gather_scaled_matmul(a, [b], a_scale, scales, dim)

    yield scatter(a=ones(32, 16)), ["a", "float8", "float32"]
    yield scatter(b=ones(32, 16).t()), ["b", "float8", "float32"]
    yield scatter(b=ones(16, 32).to(FP8)), ["b", "columns", "(32, 1)"]
    yield scatter(a_scale=ones(1).double()), ["a_scale", "float32", "float64"]
    yield scatter(a_scale=ones(31, 1)), ["a_scale", "(32, 1)", "(31, 1)"]
    yield scatter(a_scale=ones(32, 1)), ["b_scale", "(1, 32)", "(1,)"]
    yield scatter(b_scale=ones(1, 32)), ["a_scale", "(32, 1)", "(1,)"]
    yield scatter(b_scale=ones(1, device="meta")), ["b_scale", "meta"]
    yield scatter(out_dtype=torch.int32), ["out_dtype", "bfloat16", "int32"]
    yield gather(scales=(one, one)), ["b_scales", "1", "2"]
    yield gather(dim=1), ["gather_dim", "rows", "1"]
    yield gather(a_scale=ones(32, 1)), ["b_scales[0]", "(1, 32)"]
    if ON_CUDA:
        yield scatter(b=ones(30, 16).to(FP8).t()), ["b", "multiples of 16", "(16, 30)"]


CASES = {
    "gather": gather_cases,
    "reduce": reduce_cases,
    "norm": norm_cases,
    "scaled": scaled_cases,
}


def refused(rank, kind):
    from torch_symm import ops

    problems = []
    for call, parts in CASES[kind](ops):
        before = dist.group.WORLD._get_backend(
            torch.device(DEVICE)
        )._get_sequence_number_for_group()
        problems += not_raised("ValueError", parts, call)
        backend = dist.group.WORLD._get_backend(torch.device(DEVICE))
        if backend._get_sequence_number_for_group() != before:
            problems.append(f"{parts}: something was sent")
    total = ops.matmul_all_reduce(ones(2, 3), ones(3, 2))
    if total.tolist() != [[6.0, 6.0]] * 2:
        problems.append(f"afterwards the sum is {total}")
    return problems


@pytest.mark.parametrize("kind", CASES)
def test_is_refused(kind):
    check(refused, 2, kind)


def other_backends(rank):
    """A group of gloo, one that this rank is not in, no tensor; and gradients that do not exist."""
    from torch_symm import ops

    problems, a, b = [], ones(2, 3, device="cpu"), ones(3, 2, device="cpu")
    gloo = dist.new_group(backend="gloo")
    call = ops.matmul_all_reduce
    problems += not_raised("NotImplementedError", ["a", "not symm"], call, a, b, group=gloo)
    alone = dist.new_group([0])
    if rank:
        problems += not_raised("ValueError", ["group", "rank 1"], call, a, b, group=alone)
    problems += not_raised("RuntimeError", ["'a'", "Tensor"], call, [1.0], b)
    eight = ones(16, 16).to(FP8)
    scale = ones(1).requires_grad_()
    got = ops.scaled_matmul_reduce_scatter(eight, eight.t(), scale, ones(1))
    text = message_of(NotImplementedError, got.float().sum().backward)
    return problems + ([] if "no gradient" in text else [text])


def test_what_it_is_not_for():
    check(other_backends, 2, fresh=True)


def different(rank):
    """Shards of other sizes: every rank is told, by the group's comparison of calls."""
    from torch_symm import ops

    shard = small((3 + rank, 4), rank, 0).to(DEVICE)
    text = message_of(RuntimeError, ops.all_gather_matmul, shard, [ones(4, 2)], 0)
    return [] if "different calls" in text else [text]


@pytest.mark.cpu("a failed group on a GPU is the subject of test_cuda_failure.py")
def test_shards_of_different_sizes():
    check(different, 2, fresh=True)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_an_error_of_the_device_is_not_taken_for_a_wrong_dtype(monkeypatch, kind):
    """It is raised, and the dtype is asked for again by the next call."""
    from torch_symm.ops import arguments, scaling

    def fails(*args, **kwargs):
        raise kind("for now")

    cpu = torch.device("cpu")
    asked = {
        "mm": lambda: arguments._multiplies(torch.float32, cpu),
        "_scaled_mm": lambda: scaling._multiplies(FP8, FP8, torch.bfloat16, False, cpu),
    }
    for name, multiplies in asked.items():
        for module in (arguments, scaling):
            module._multiplies.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(torch, name, fails)
            with pytest.raises(kind, match="for now"):
                multiplies()
        assert multiplies()
