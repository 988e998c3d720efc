"""Messages between GPUs: every size, any order of tags, both directions at once."""

import pytest
import torch
import torch.distributed as dist

import model
from harness import GPUS, WORLD_SIZE, check, crowded

pytestmark = pytest.mark.cuda

SIZES = [0, 1, 3, 16, 4_095, 65_537, 1 << 20, (16 << 20) + 7, 64 << 20]  # bytes
MESSAGES = 24 if crowded(WORLD_SIZE) else 300


def message(sender: int, number: int, count: int) -> torch.Tensor:
    """Bytes that depend on who sends them and which message it is."""
    return model.make_input(torch.uint8, count, sender + 10 * number, number)


def poisoned(count: int) -> torch.Tensor:
    return torch.full((count,), 0xA5, dtype=torch.uint8, device="cuda")


def run(body, *args, **settings):
    check(body, WORLD_SIZE, *args, **settings)


def neighbours(rank):
    return (rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE


def one_size(rank, count):
    """Blocking between pairs, then isend with irecv round the ring, then a batch of both."""
    problems, pair = [], rank ^ 1
    tensor = poisoned(count)
    if rank % 2:
        dist.send(message(rank, 1, count).cuda(), pair)
        dist.recv(tensor, pair)
    else:
        dist.recv(tensor, pair)
        dist.send(message(rank, 1, count).cuda(), pair)
    problems += model.mismatch("send and recv", tensor, message(pair, 1, count))

    right, left = neighbours(rank)
    tensor = poisoned(count)
    works = [dist.isend(message(rank, 2, count).cuda(), right), dist.irecv(tensor, left)]
    for work in works:
        work.wait()
    problems += model.mismatch("ring", tensor, message(left, 2, count))

    from_left, from_right = poisoned(count), poisoned(count)
    operations = [
        dist.P2POp(dist.isend, message(rank, 3, count).cuda(), right),
        dist.P2POp(dist.isend, message(rank, 4, count).cuda(), left),
        dist.P2POp(dist.irecv, from_left, left),
        dist.P2POp(dist.irecv, from_right, right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    problems += model.mismatch("batch, from the left", from_left, message(left, 3, count))
    problems += model.mismatch("batch, from the right", from_right, message(right, 4, count))
    return problems


@pytest.mark.parametrize("count", SIZES)
def test_sizes(count):
    run(one_size, count, time_limit=100)


def tags_out_of_order(rank, count, tags):
    """Sent in one order, received in another, all under way at the same time."""
    right, left = neighbours(rank)
    works = [dist.isend(message(rank, tag, count).cuda(), right, tag=tag) for tag in tags]
    received = {}
    for tag in reversed(tags):
        received[tag] = poisoned(count)
        works.append(dist.irecv(received[tag], left, tag=tag))
    for work in works:
        work.wait()
    return [
        line
        for tag, tensor in received.items()
        for line in model.mismatch(f"tag {tag}", tensor, message(left, tag, count))
    ]


@pytest.mark.parametrize("count", [100, 3 << 20])
@pytest.mark.parametrize("tags", [[1, 2, 3], [5, 2, 7, 0]], ids=str)
def test_tags_out_of_order(tags, count):
    run(tags_out_of_order, count, tags)


def same_tag_in_order(rank):
    """Messages of one pair and tag match in the order of the calls, whatever their sizes."""
    right, left = neighbours(rank)
    sizes = [5, 1 << 20, 0, 17, 300_000, 64]
    works = [dist.isend(message(rank, n, s).cuda(), right) for n, s in enumerate(sizes)]
    received = [poisoned(size) for size in sizes]
    works += [dist.irecv(tensor, left) for tensor in received]
    for work in works:
        work.wait()
    return [
        line
        for n, tensor in enumerate(received)
        for line in model.mismatch(f"message {n}", tensor, message(left, n, sizes[n]))
    ]


def test_messages_of_one_tag_keep_their_order():
    run(same_tag_in_order)


def many_messages(rank):
    """To and from every other rank in turn, small and large mixed, checked at the end."""
    problems, kept = [], []
    for number in range(MESSAGES):
        count = [1, 40, 5_000, 70_001, 700_001][number % 5]
        step = 1 + number % (WORLD_SIZE - 1)
        to, source = (rank + step) % WORLD_SIZE, (rank - step) % WORLD_SIZE
        tensor = poisoned(count)
        operations = [
            dist.P2POp(dist.isend, message(rank, number, count).cuda(), to),
            dist.P2POp(dist.irecv, tensor, source),
        ]
        works = dist.batch_isend_irecv(operations)
        kept.append((works, tensor, source, number, count))
    for works, tensor, source, number, count in kept:
        for work in works:
            work.wait()
        problems += model.mismatch(f"message {number}", tensor, message(source, number, count))
    return problems


def test_many_messages():
    run(many_messages, time_limit=100)


def crosswise(rank):
    """What is sent with one tag does not wait for what is received with another, however many
    streams the program takes from PyTorch's pool of 32."""
    count, peers, problems = 4 << 20, [r for r in range(WORLD_SIZE) if r != rank], []

    def exchange(bytes_of_each, tags):
        received, works = {}, []
        for tag in tags:
            for peer in peers:
                sent = message(rank, tag, bytes_of_each).cuda()
                works.append(dist.isend(sent, peer, tag=tag))
        for tag in reversed(tags):
            for peer in peers:
                received[peer, tag] = poisoned(bytes_of_each)
                works.append(dist.irecv(received[peer, tag], peer, tag=tag))
        for work in works:
            work.wait()
        for (peer, tag), tensor in received.items():
            expected = message(peer, tag, bytes_of_each)
            problems.extend(model.mismatch(f"tag {tag} from {peer}", tensor, expected))

    def take_streams(number):
        return [torch.cuda.Stream() for _ in range(number)]

    # Streams from the pool would be taken in this order: of the sends of tag 1, of its recvs, and
    # then the recvs of tag 2 would get those of the sends of tag 1.
    exchange(8, [1])
    take_streams(32 - 2 * len(peers))
    small = [poisoned(8) for _ in peers]
    works = [dist.irecv(small[i], peer, tag=2) for i, peer in enumerate(peers)]
    works += [dist.isend(message(rank, 2, 8).cuda(), peer, tag=2) for peer in peers]
    for work in works:
        work.wait()
    exchange(count, [1, 2])
    return problems


def test_streams_are_not_shared():
    run(crosswise)


def everybody_to_everybody(rank):
    """One batch with every pair in both directions."""
    peers = [peer for peer in range(WORLD_SIZE) if peer != rank]
    received = {peer: poisoned(200_003) for peer in peers}
    operations = []
    for peer in peers:
        mine = message(rank, peer, 200_003).cuda()
        operations.append(dist.P2POp(dist.isend, mine, peer))
        operations.append(dist.P2POp(dist.irecv, received[peer], peer))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [
        line
        for peer, tensor in received.items()
        for line in model.mismatch(f"from {peer}", tensor, message(peer, rank, 200_003))
    ]


def test_a_batch_between_all_pairs():
    run(everybody_to_everybody)


def beside_collectives(rank, cold):
    """Messages do not wait for collectives, nor collectives for messages. `cold`: of a group that
    has not run any, which maps the peers' memory while the kernel of a recv runs."""
    right, left = neighbours(rank)
    group = dist.new_group(list(range(WORLD_SIZE)))
    # CUDA loads a kernel of torch when it is first launched, and may wait for running ones then.
    total = torch.full((1000,), rank + 1.0, device="cuda")
    outgoing, tensor = message(rank, 1, 50_000).cuda(), poisoned(50_000)
    if not cold:
        dist.all_reduce(total, group=group)
        total.fill_(rank + 1.0)
    dist.barrier()
    receiving = dist.irecv(tensor, left)
    dist.all_reduce(total, group=group)
    summed = total.cpu()  # nobody has sent yet
    sending = dist.isend(outgoing, right)
    sending.wait()
    receiving.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    expected = torch.full((1000,), WORLD_SIZE * (WORLD_SIZE + 1) / 2)
    problems = model.mismatch("all_reduce while a recv waits", summed, expected)
    return problems + model.mismatch("the message", tensor, message(left, 1, 50_000))


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_messages_beside_collectives(cold):
    run(beside_collectives, cold)


@pytest.mark.skipif(GPUS == 1 and WORLD_SIZE > 2, reason="a ring of many ranks on one GPU")
def test_sub_groups():
    """Ranks of a group are not global ranks."""
    check(in_sub_groups, WORLD_SIZE)


def in_sub_groups(rank):
    lists = [[0, 2], [1, 3]] if WORLD_SIZE == 4 else [[1, 0]]
    problems = []
    for ranks in lists:
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        peer = next(r for r in ranks if r != rank)
        tensor = poisoned(9_999)
        operations = [
            dist.P2POp(dist.isend, message(rank, 6, 9_999).cuda(), peer, group),
            dist.P2POp(dist.irecv, tensor, peer, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        problems += model.mismatch(f"in {ranks}", tensor, message(peer, 6, 9_999))
    torch.cuda.synchronize()
    return problems
