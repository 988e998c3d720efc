"""Messages between two ranks, batches of them, and collectives of Python objects."""

import pytest
import torch
import torch.distributed as dist

from backend import (
    WORLD_SIZE,
    carries_or_refuses,
    conforms,
    mine,
    need,
    numbers,
    same,
    still_works,
    subgroup,
)
from harness import DEVICE, device_of_rank

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8]
DTYPES += [torch.uint8, torch.bool, torch.complex64]


def blank(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def around(rank) -> tuple[int, int]:
    """(the rank after this one, the rank before it)"""
    return (rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE


# -- Single messages ------------------------------------------------------------------------------


def sends_one(rank, dtype):
    for shape in [(), (1,), (3, 5), (70, 1000)]:
        if rank == 0:
            assert dist.send(mine(0, *shape, dtype=dtype), dst=1) is None
        elif rank == 1:
            tensor = blank(*shape, dtype=dtype)
            assert dist.recv(tensor, src=0) == 0
            same(tensor, numbers(0, *shape, dtype=dtype), f"{shape}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_send_and_recv(dtype):
    conforms(sends_one, dtype)


def goes_round(rank):
    after, before = around(rank)
    received = blank(1001)
    works = [dist.irecv(received, src=before), dist.isend(mine(rank, 1001), dst=after)]
    for work in works:
        work.wait()
        assert work.is_completed() or DEVICE == "cuda"
    same(received, numbers(before, 1001))


def test_isend_and_irecv_around_a_ring():
    need("messages beside other calls")
    conforms(goes_round)


def keeps_their_order(rank):
    count = 50
    if rank == 0:
        for number in range(count):
            dist.send(mine(0, 1 + number % 9, salt=number), dst=1)
    elif rank == 1:
        tensors = [blank(1 + number % 9) for number in range(count)]
        works = [dist.irecv(tensor, src=0) for tensor in tensors]
        for work in works:
            work.wait()
        same(tensors, [numbers(0, 1 + n % 9, salt=n) for n in range(count)])


def test_messages_arrive_in_the_order_of_their_sends():
    conforms(keeps_their_order)


def sends_nothing(rank):
    if rank == 0:
        dist.send(blank(0, 3), dst=1)
        dist.send(mine(0, 4), dst=1)
    elif rank == 1:
        dist.recv(blank(0, 3), src=0)
        tensor = blank(4)
        dist.recv(tensor, src=0)
        same(tensor, numbers(0, 4), "the message behind it")


def test_messages_of_nothing():
    conforms(sends_nothing)


def from_any_rank(rank):
    if rank == 0:
        seen = set()
        for _ in range(WORLD_SIZE - 1):
            tensor = blank(7)
            sender = dist.recv(tensor)
            same(tensor, numbers(sender, 7), f"of rank {sender}")
            seen.add(sender)
        assert seen == set(range(1, WORLD_SIZE))
    else:
        dist.send(mine(rank, 7), dst=0)
    dist.barrier()


def test_recv_from_any_rank():
    need("recv from any rank")
    conforms(from_any_rank)


def any_rank_of_a_group(rank):
    members = [0, WORLD_SIZE - 1]
    with subgroup(members) as group:
        if rank == WORLD_SIZE - 1:
            dist.send(mine(rank, 7), dst=0, group=group)
        elif rank == 0:
            tensor = blank(7)
            assert dist.recv(tensor, group=group) == WORLD_SIZE - 1
            same(tensor, numbers(WORLD_SIZE - 1, 7))
        dist.barrier()


def test_recv_from_any_rank_of_a_group_names_the_global_rank():
    need("recv from any rank")
    conforms(any_rank_of_a_group)


def by_tags(rank):
    if rank == 0:
        works = [dist.isend(mine(0, 4, salt=tag), dst=1, tag=tag) for tag in range(4)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (2, 0, 3, 1):
            tensor = blank(4)
            dist.recv(tensor, src=0, tag=tag)
            same(tensor, numbers(0, 4, salt=tag), f"tag {tag}")


def test_tags_choose_among_messages():
    need("tags")
    conforms(by_tags)


def in_a_group(rank):
    members = [1, 0]
    with subgroup(members) as group:
        if rank == 1:
            dist.send(mine(1, 5), group=group, group_dst=dist.get_group_rank(group, 0))
            dist.send(mine(1, 5, salt=1), dst=0, group=group)
        elif rank == 0:
            tensor = blank(5)
            dist.recv(tensor, group=group, group_src=dist.get_group_rank(group, 1))
            same(tensor, numbers(1, 5), "by group ranks")
            dist.recv(tensor, src=1, group=group)
            same(tensor, numbers(1, 5, salt=1), "by global ranks")


def test_messages_in_a_group():
    conforms(in_a_group)


def between_collectives(rank):
    """A send on its way does not hold up a collective, and the other way round."""
    after, before = around(rank)
    received = blank(11)
    receive = dist.irecv(received, src=before)
    still_works(rank)
    send = dist.isend(mine(rank, 11), dst=after)
    still_works(rank)
    receive.wait()
    send.wait()
    same(received, numbers(before, 11))


def test_messages_among_collectives():
    need("messages beside other calls")
    conforms(between_collectives)


def of_columns(rank):
    columns = mine(rank, 6, 8)[:, ::2]
    if rank == 0:
        if not carries_or_refuses(lambda: dist.send(columns, dst=1)):
            dist.send(columns.contiguous(), dst=1)
    elif rank == 1:
        tensor = blank(6, 4)
        dist.recv(tensor, src=0)
        same(tensor, numbers(0, 6, 8)[:, ::2])


def test_messages_with_gaps_are_carried_or_refused():
    conforms(of_columns)


def to_oneself(rank):
    with pytest.raises(ValueError, match="rank"):
        dist.send(blank(3), dst=rank)
    with pytest.raises((ValueError, RuntimeError)):
        dist.recv(blank(3), src=rank)
    still_works(rank)


def test_messages_to_oneself_are_refused():
    conforms(to_oneself)


# -- Batches --------------------------------------------------------------------------------------


def wait_for_all(operations) -> None:
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def batches_with_all(rank, receives_first):
    peers = [peer for peer in range(WORLD_SIZE) if peer != rank]
    outputs = {peer: blank(33) for peer in peers}
    receives = [dist.P2POp(dist.irecv, outputs[peer], peer) for peer in peers]
    sends = [dist.P2POp(dist.isend, mine(rank, 33, salt=peer), peer) for peer in reversed(peers)]
    wait_for_all(receives + sends if receives_first else sends + receives)
    for peer in peers:
        same(outputs[peer], numbers(peer, 33, salt=rank), f"of rank {peer}")


@pytest.mark.parametrize("receives_first", [False, True], ids=["sends first", "receives first"])
def test_batches_in_any_order(receives_first):
    conforms(batches_with_all, receives_first)


def batches_several(rank):
    """Two messages for each neighbour, of different dtypes."""
    after, before = around(rank)
    whole, half = blank(5, dtype=torch.int64), blank(9, dtype=torch.float16)
    wait_for_all(
        [
            dist.P2POp(dist.isend, mine(rank, 5, dtype=torch.int64), after),
            dist.P2POp(dist.irecv, whole, before),
            dist.P2POp(dist.isend, mine(rank, 9, dtype=torch.float16), after),
            dist.P2POp(dist.irecv, half, before),
        ]
    )
    same(whole, numbers(before, 5, dtype=torch.int64), "the first")
    same(half, numbers(before, 9, dtype=torch.float16), "the second")


def test_batches_of_several_messages_for_one_rank():
    conforms(batches_several)


def batches_by_some(rank):
    if rank == 0:
        wait_for_all([dist.P2POp(dist.isend, mine(0, 6), 1)])
    elif rank == 1:
        tensor = blank(6)
        wait_for_all([dist.P2POp(dist.irecv, tensor, 0)])
        same(tensor, numbers(0, 6))
    still_works(rank)


def test_batches_of_two_ranks_alone():
    conforms(batches_by_some)


def batches_by_group_rank(rank):
    with subgroup([0, 1]) as group:
        if rank < 2:
            other = dist.get_group_rank(group, 1 - rank)
            tensor = blank(6)
            send = dist.P2POp(dist.isend, mine(rank, 6), group=group, group_peer=other)
            receive = dist.P2POp(dist.irecv, tensor, group=group, group_peer=other)
            wait_for_all([send, receive])
            same(tensor, numbers(1 - rank, 6))


def test_batches_in_a_group():
    conforms(batches_by_group_rank)


def refuses_other_operations(rank):
    with pytest.raises((ValueError, RuntimeError)):
        dist.P2POp(dist.broadcast, blank(1), 0)
    with pytest.raises((ValueError, RuntimeError, TypeError, AttributeError)):
        dist.batch_isend_irecv([1.0])


def test_batches_of_anything_else_are_refused():
    conforms(refuses_other_operations)


# -- Objects --------------------------------------------------------------------------------------


def thing(rank):
    """Of a different size on every rank."""
    return {"rank": rank, "list": list(range(rank * 100)), "tensor": torch.full((rank + 1,), rank)}


def alike(got, expected) -> None:
    assert got["rank"] == expected["rank"]
    assert got["list"] == expected["list"]
    assert torch.equal(got["tensor"], expected["tensor"])


def gathers_objects(rank):
    objects = [None] * WORLD_SIZE
    dist.all_gather_object(objects, thing(rank))
    for peer, got in enumerate(objects):
        alike(got, thing(peer))


def test_all_gather_object():
    conforms(gathers_objects)


def gathers_objects_to_one(rank):
    for root in range(WORLD_SIZE):
        objects = [None] * WORLD_SIZE if rank == root else None
        dist.gather_object(thing(rank), objects, dst=root)
        if rank == root:
            for peer, got in enumerate(objects):
                alike(got, thing(peer))


def test_gather_object():
    conforms(gathers_objects_to_one)


def broadcasts_objects(rank):
    for root in range(WORLD_SIZE):
        objects = [thing(root), "text", None] if rank == root else [None] * 3
        dist.broadcast_object_list(objects, src=root)
        alike(objects[0], thing(root))
        assert objects[1:] == ["text", None]


def test_broadcast_object_list():
    conforms(broadcasts_objects)


def scatters_objects(rank):
    for root in range(WORLD_SIZE):
        inputs = [thing(peer) for peer in range(WORLD_SIZE)] if rank == root else None
        output = [None]
        dist.scatter_object_list(output, inputs, src=root)
        alike(output[0], thing(rank))


def test_scatter_object_list():
    conforms(scatters_objects)


def sends_objects(rank, device):
    where = device_of_rank() if device else None
    if rank == 0:
        dist.send_object_list([thing(3), "text"], dst=1, device=where)
    elif rank == 1:
        objects = [None, None]
        assert dist.recv_object_list(objects, src=0, device=where) == 0
        alike(objects[0], thing(3))
        assert objects[1] == "text"


@pytest.mark.parametrize("device", [False, True], ids=["default", "named"])
def test_send_and_recv_object_list(device):
    conforms(sends_objects, device)


def objects_in_a_group(rank):
    members = [0, WORLD_SIZE - 1]
    with subgroup(members) as group:
        if rank in members:
            objects = [None, None]
            dist.all_gather_object(objects, thing(rank), group=group)
            for number, got in enumerate(objects):
                alike(got, thing(dist.get_global_rank(group, number)))
            said = [rank]
            dist.broadcast_object_list(said, src=WORLD_SIZE - 1, group=group)
            assert said == [WORLD_SIZE - 1]


def test_objects_in_a_group():
    conforms(objects_in_a_group)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not to be pickled")


def refuses_what_pickle_refuses(rank):
    with pytest.raises(TypeError, match="not to be pickled"):
        dist.all_gather_object([None] * WORLD_SIZE, Unpicklable())
    still_works(rank)


def test_objects_that_cannot_be_pickled():
    conforms(refuses_what_pickle_refuses)
