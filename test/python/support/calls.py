"""Every collective of torch.distributed as a function that carries it out once and compares what
came with the model."""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _get_default_store

import model
from call import Call
from harness import IS_SYMM, device_of_rank


def broadcast(c: Call) -> None:
    tensor = c.inout(c.content(c.me)) if c.me == c.root else c.target()
    c.run(dist.broadcast, tensor, src=c.global_root)
    c.check("broadcast", tensor, c.content(c.root))


def all_reduce(c: Call) -> None:
    tensor = c.inout(c.content(c.me))
    c.run(dist.all_reduce, tensor, op=c.torch_op())
    c.check("all_reduce", tensor, c.expected_reduction())


def all_reduce_coalesced(c: Call) -> None:
    counts = [c.count, c.count // 2 + 1, c.count]
    tensors = [c.inout(c.content(c.me, n, part)) for part, n in enumerate(counts)]
    c.run(dist.all_reduce_coalesced, tensors, op=c.torch_op())
    for part, (tensor, n) in enumerate(zip(tensors, counts, strict=True)):
        c.check(f"all_reduce_coalesced[{part}]", tensor, c.expected_reduction(n, part))


def reduce(c: Call) -> None:
    # Gloo overwrites what the other ranks bring.
    keep = c.me != c.root and IS_SYMM
    tensor = c.source(c.content(c.me)) if keep else c.inout(c.content(c.me))
    c.run(dist.reduce, tensor, dst=c.global_root, op=c.torch_op())
    if c.me == c.root:
        c.check("reduce", tensor, c.expected_reduction())


def all_gather(c: Call) -> None:
    outputs = [c.target() for _ in c.ranks]
    c.run(dist.all_gather, outputs, c.source(c.content(c.me)))
    for r, output in enumerate(outputs):
        c.check(f"all_gather[{r}]", output, c.content(r))


def all_gather_uneven(c: Call) -> None:
    counts = [(c.count * (r + 1)) // 2 for r in range(c.size)]
    outputs = [c.target(n) for n in counts]
    c.run(dist.all_gather, outputs, c.source(c.content(c.me, counts[c.me])))
    for r, output in enumerate(outputs):
        c.check(f"all_gather_uneven[{r}]", output, c.content(r, counts[r]))


def all_gather_into_tensor(c: Call) -> None:
    output = c.target(c.count * c.size)
    c.run(dist.all_gather_into_tensor, output, c.source(c.content(c.me)))
    c.check("all_gather_into_tensor", output, torch.cat([c.content(r) for r in range(c.size)]))


def all_gather_in_place(c: Call) -> None:
    output = c.target(c.count * c.size)
    mine = output[c.me * c.count : (c.me + 1) * c.count]
    mine.copy_(c.content(c.me))
    c.run(dist.all_gather_into_tensor, output, mine)
    c.check("all_gather in place", output, torch.cat([c.content(r) for r in range(c.size)]))


def all_gather_coalesced(c: Call) -> None:
    counts = [c.count, c.count // 3 + 2]
    outputs = [[c.target(n) for n in counts] for _ in c.ranks]
    inputs = [c.source(c.content(c.me, n, part)) for part, n in enumerate(counts)]
    c.run(dist.all_gather_coalesced, outputs, inputs)
    for r, row in enumerate(outputs):
        for part, n in enumerate(counts):
            c.check(f"all_gather_coalesced[{r}][{part}]", row[part], c.content(r, n, part))


def gather_single(c: Call) -> None:
    output = c.target(c.count * c.size) if c.me == c.root else None
    c.run(dist.gather_single, c.source(c.content(c.me)), output, dst=c.global_root)
    if output is not None:
        c.check("gather_single", output, torch.cat([c.content(r) for r in range(c.size)]))


def gather(c: Call) -> None:
    outputs = [c.target() for _ in c.ranks] if c.me == c.root else None
    c.run(dist.gather, c.source(c.content(c.me)), outputs, dst=c.global_root)
    for r, output in enumerate(outputs or []):
        c.check(f"gather[{r}]", output, c.content(r))


def scatter(c: Call) -> None:
    output = c.target()
    at_root = c.me == c.root
    inputs = [c.source(c.content(c.me, part=r)) for r in range(c.size)] if at_root else None
    c.run(dist.scatter, output, inputs, src=c.global_root)
    c.check("scatter", output, c.content(c.root, part=c.me))


def reduce_scatter(c: Call) -> None:
    output = c.target()
    inputs = [c.source(c.content(c.me, part=r)) for r in range(c.size)]
    c.run(dist.reduce_scatter, output, inputs, op=c.torch_op())
    c.check("reduce_scatter", output, c.expected_reduction(part=c.me))


def reduce_scatter_uneven(c: Call) -> None:
    counts = [(c.count * (r + 1)) // 2 for r in range(c.size)]
    output = c.target(counts[c.me])
    inputs = [c.source(c.content(c.me, n, part=r)) for r, n in enumerate(counts)]
    c.run(dist.reduce_scatter, output, inputs, op=c.torch_op())
    c.check("reduce_scatter uneven", output, c.expected_reduction(counts[c.me], part=c.me))


def reduce_scatter_tensor(c: Call) -> None:
    output = c.target()
    c.run(
        dist.reduce_scatter_tensor,
        output,
        c.source(c.content(c.me, c.count * c.size)),
        op=c.torch_op(),
    )
    whole = c.expected_reduction(c.count * c.size)
    mine = slice(c.me * c.count, (c.me + 1) * c.count)
    c.check("reduce_scatter_tensor", output, whole[mine])


def _uneven(c: Call, sender: int, receiver: int) -> int:
    """Elements that `sender` has for `receiver`: some pairs exchange nothing."""
    return (c.count * ((sender + 2 * receiver + c.salt) % 3)) // 2


def all_to_all(c: Call) -> None:
    outputs = [c.target() for _ in c.ranks]
    c.run(dist.all_to_all, outputs, [c.source(c.content(c.me, part=r)) for r in range(c.size)])
    for r, output in enumerate(outputs):
        c.check(f"all_to_all[{r}]", output, c.content(r, part=c.me))


def all_to_all_uneven(c: Call) -> None:
    outputs = [c.target(_uneven(c, r, c.me)) for r in range(c.size)]
    inputs = [c.source(c.content(c.me, _uneven(c, c.me, r), part=r)) for r in range(c.size)]
    c.run(dist.all_to_all, outputs, inputs)
    for r, output in enumerate(outputs):
        c.check(f"all_to_all uneven[{r}]", output, c.content(r, _uneven(c, r, c.me), part=c.me))


def all_to_all_single(c: Call) -> None:
    output = c.target(c.count * c.size)
    c.run(dist.all_to_all_single, output, c.source(c.content(c.me, c.count * c.size)))
    mine = slice(c.me * c.count, (c.me + 1) * c.count)
    expected = torch.cat([c.content(r, c.count * c.size)[mine] for r in range(c.size)])
    c.check("all_to_all_single", output, expected)


def all_to_all_single_uneven(c: Call) -> None:
    to = [_uneven(c, c.me, r) for r in range(c.size)]
    come = [_uneven(c, r, c.me) for r in range(c.size)]
    output = c.target(sum(come))
    pieces = [c.content(c.me, n, part=r) for r, n in enumerate(to)]
    c.run(
        dist.all_to_all_single,
        output,
        c.source(torch.cat(pieces)),
        output_split_sizes=come,
        input_split_sizes=to,
    )
    expected = torch.cat([c.content(r, n, part=c.me) for r, n in enumerate(come)])
    c.check("all_to_all_single uneven", output, expected)


def send_recv(c: Call) -> None:
    """Blocking, round the ring: rank 0 starts, the others pass on after they received."""
    following, before = (c.me + 1) % c.size, (c.me - 1) % c.size
    message, received = c.source(c.content(c.me)), c.target()
    if c.me == 0:
        dist.send(message, dst=c.ranks[following], group=c.group, tag=c.salt)
    source = dist.recv(received, src=c.ranks[before], group=c.group, tag=c.salt)
    if c.me != 0:
        dist.send(message, dst=c.ranks[following], group=c.group, tag=c.salt)
    if source != c.ranks[before]:
        c.problems.append(f"recv returned source {source}, expected {c.ranks[before]}")
    c.check("recv", received, c.content(before))


def isend_irecv_tags(c: Call) -> None:
    """Three tagged messages to every other rank, received in another order than sent."""
    peers = [r for r in range(c.size) if r != c.me]
    tags = [c.salt * 8 + t for t in (1, 2, 3)]
    works, received = [], {}
    for peer in peers:
        for part, tag in enumerate(tags):
            message = c.source(c.content(c.me, c.count + part, part))
            works.append(dist.isend(message, c.ranks[peer], group=c.group, tag=tag))
    for part in (2, 0, 1):
        for peer in reversed(peers):
            received[peer, part] = c.target(c.count + part)
            work = dist.irecv(received[peer, part], c.ranks[peer], c.group, tags[part])
            works.append(work)
    for work in reversed(works):
        work.wait()
    for (peer, part), tensor in received.items():
        c.check(f"irecv from {peer} tag {part}", tensor, c.content(peer, c.count + part, part))


def recv_any_source(c: Call) -> None:
    """The root hears one message from each rank, in whatever order they come."""
    if c.me != c.root:
        dist.send(c.source(c.content(c.me)), dst=c.global_root, group=c.group, tag=c.salt)
    else:
        _hear_from_any(c)
    # A rank that went on could send its next message with the same tag before the root has heard
    # from all, and that one is from any source too.
    dist.barrier(group=c.group)


def _hear_from_any(c: Call) -> None:
    seen = []
    for _ in range(c.size - 1):
        received = c.target()
        seen.append(dist.recv(received, src=None, group=c.group, tag=c.salt))
        if seen[-1] in c.ranks:
            c.check("recv from any", received, c.content(c.ranks.index(seen[-1])))
    if sorted(seen) != sorted(r for r in c.ranks if r != c.global_root):
        c.problems.append(f"recv from any source named the sources {seen}")


def batch_isend_irecv(c: Call) -> None:
    """Both neighbours, both directions, in one batch."""
    right, left = (c.me + 1) % c.size, (c.me - 1) % c.size
    from_left, from_right = c.target(), c.target()
    to_right, to_left = c.source(c.content(c.me, part=1)), c.source(c.content(c.me, part=2))
    # With two ranks left is right, and messages of one pair match in order.
    operations = [
        dist.P2POp(dist.isend, to_right, c.ranks[right], group=c.group),
        dist.P2POp(dist.isend, to_left, c.ranks[left], group=c.group),
        dist.P2POp(dist.irecv, from_left, c.ranks[left], group=c.group),
        dist.P2POp(dist.irecv, from_right, c.ranks[right], group=c.group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    c.check("from left", from_left, c.content(left, part=1))
    c.check("from right", from_right, c.content(right, part=2))


def batch_with_oneself(c: Call) -> None:
    """Two tagged messages from every rank to every rank, itself included, in one batch; the recvs
    stand in another order than the sends."""
    operations, received = [], {}
    tags = (c.salt * 8 + 1, c.salt * 8 + 2)
    for peer in reversed(range(c.size)):
        for part in (1, 0):
            received[peer, part] = c.target(c.count + part)
            operations.append(
                dist.P2POp(dist.irecv, received[peer, part], c.ranks[peer], c.group, tags[part])
            )
    for peer in range(c.size):
        for part in (0, 1):
            message = c.source(c.content(c.me, c.count + part, 2 * peer + part))
            operations.append(dist.P2POp(dist.isend, message, c.ranks[peer], c.group, tags[part]))
    for work in dist.batch_isend_irecv(operations[::2] + operations[1::2]):
        work.wait()
    for (peer, part), tensor in received.items():
        content = c.content(peer, c.count + part, 2 * c.me + part)
        c.check(f"batch: part {part} from {peer}", tensor, content)


def barrier(c: Call) -> None:
    """Nobody leaves before everybody has come."""
    # The key must be new for every call, and the same on every rank of the group.
    store, key = _get_default_store(), f"barrier/{c.ranks}/{next_key(c)}"
    store.add(key, 1)
    work = dist.barrier(group=c.group, async_op=c.async_op)
    if c.async_op:
        work.wait()
    arrived = store.add(key, 0)
    if arrived != c.size:
        c.problems.append(f"left the barrier when {arrived} of {c.size} had come")


_barriers: dict[str, int] = {}


def next_key(c: Call) -> int:
    key = str(c.ranks)
    _barriers[key] = _barriers.get(key, 0) + 1
    return _barriers[key]


def _object(c: Call, group_rank: int, part: int = 0):
    length = (c.count * (group_rank + 1) + part) % 5000
    return {"from": c.ranks[group_rank], "part": part, "text": "ä" * length, "salt": c.salt}


def _same(c: Call, what: str, got, expected) -> None:
    if got != expected:
        c.problems.append(f"{what}: {str(got)[:200]} for {str(expected)[:200]}")


def all_gather_object(c: Call) -> None:
    out = [None] * c.size
    dist.all_gather_object(out, _object(c, c.me), group=c.group)
    _same(c, "all_gather_object", out, [_object(c, r) for r in range(c.size)])


def broadcast_object_list(c: Call) -> None:
    expected = [_object(c, c.root, part) for part in range(3)]
    out = list(expected) if c.me == c.root else ["poison"] * 3
    dist.broadcast_object_list(out, src=c.global_root, group=c.group)
    _same(c, "broadcast_object_list", out, expected)


def gather_object(c: Call) -> None:
    out = [None] * c.size if c.me == c.root else None
    dist.gather_object(_object(c, c.me), out, dst=c.global_root, group=c.group)
    if c.me == c.root:
        _same(c, "gather_object", out, [_object(c, r) for r in range(c.size)])


def scatter_object_list(c: Call) -> None:
    out = ["poison"]
    given = [_object(c, c.root, part) for part in range(c.size)] if c.me == c.root else None
    dist.scatter_object_list(out, given, src=c.global_root, group=c.group)
    _same(c, "scatter_object_list", out, [_object(c, c.root, c.me)])


def _coalesced(c: Call, device):
    return _coalescing_manager(c.group, device, c.async_op)


def _coalesced_all_reduce(c: Call, device) -> None:
    tensors = [c.inout(c.content(c.me, c.count + part, part)) for part in range(3)]
    with _coalesced(c, device) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, op=c.torch_op(), group=c.group)
    if c.async_op:
        manager.wait()
    for part, tensor in enumerate(tensors):
        c.check(f"tensor {part}", tensor, c.expected_reduction(c.count + part, part))


def coalescing_manager_all_reduce(c: Call) -> None:
    _coalesced_all_reduce(c, None)


def coalescing_manager_of_device(c: Call) -> None:
    _coalesced_all_reduce(c, device_of_rank())


def coalescing_manager_all_gather(c: Call) -> None:
    outputs = [c.target((c.count + part) * c.size) for part in range(2)]
    with _coalesced(c, None) as manager:
        for part, output in enumerate(outputs):
            mine = c.source(c.content(c.me, c.count + part, part))
            dist.all_gather_into_tensor(output, mine, group=c.group)
    if c.async_op:
        manager.wait()
    for part, output in enumerate(outputs):
        expected = [c.content(r, c.count + part, part) for r in range(c.size)]
        c.check(f"output {part}", output, torch.cat(expected))


def coalescing_manager_reduce_scatter(c: Call) -> None:
    counts = [c.count, c.count + 3]
    outputs = [c.target(n) for n in counts]
    with _coalesced(c, None) as manager:
        for part, output in enumerate(outputs):
            whole = c.source(c.content(c.me, counts[part] * c.size, part))
            dist.reduce_scatter_tensor(output, whole, op=c.torch_op(), group=c.group)
    if c.async_op:
        manager.wait()
    for part, (output, n) in enumerate(zip(outputs, counts, strict=True)):
        whole = c.expected_reduction(n * c.size, part)
        c.check(f"output {part}", output, whole[c.me * n : (c.me + 1) * n])


REDUCTIONS = [
    all_reduce,
    all_reduce_coalesced,
    reduce,
    reduce_scatter,
    reduce_scatter_uneven,
    reduce_scatter_tensor,
    coalescing_manager_all_reduce,
    coalescing_manager_of_device,
    coalescing_manager_reduce_scatter,
]
MOVES = [
    broadcast,
    all_gather,
    all_gather_uneven,
    all_gather_into_tensor,
    all_gather_in_place,
    all_gather_coalesced,
    gather,
    *([gather_single] if hasattr(dist, "gather_single") else []),  # from torch 2.14 on
    scatter,
    all_to_all,
    all_to_all_uneven,
    all_to_all_single,
    all_to_all_single_uneven,
    coalescing_manager_all_gather,
]
POINT_TO_POINT = [
    send_recv,
    isend_irecv_tags,
    recv_any_source,
    batch_isend_irecv,
    batch_with_oneself,
]
NEEDS_A_PEER = {*POINT_TO_POINT} - {batch_with_oneself}
OBJECTS = [all_gather_object, broadcast_object_list, gather_object, scatter_object_list]
# torch.distributed itself refuses complex products in these, before any backend is asked.
_NO_COMPLEX_PRODUCT = {
    all_reduce,
    all_reduce_coalesced,
    coalescing_manager_all_reduce,
    coalescing_manager_of_device,
}
EVERY_CALL = [*REDUCTIONS, *MOVES, *POINT_TO_POINT, *OBJECTS, barrier]

# What gloo has not got, does only for equal shares, or (any source) not with 0 elements.
GLOO_LACKS = {
    recv_any_source,
    batch_with_oneself,
    all_gather_uneven,
    all_to_all_uneven,
    reduce_scatter,
    reduce_scatter_uneven,
    all_gather_in_place,
    coalescing_manager_of_device,
    coalescing_manager_all_gather,
    coalescing_manager_reduce_scatter,
}


def accepts(collective, op: str, dtype: torch.dtype) -> bool:
    """Whether `op` on `dtype` has a meaning and gets through torch.distributed."""
    if op == "PRODUCT" and dtype.is_complex and collective in _NO_COMPLEX_PRODUCT:
        return False
    return model.meaningful(op, dtype)
