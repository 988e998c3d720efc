"""CUDA graphs: every collective is captured once and replayed with new data, the value of every
replay checked; and what else capture is mixed with in programs."""

import re
import time

import pytest
import torch
import torch.distributed as dist

import model
from graph_operations import NAMES, Operations, buffer, captured, content
from harness import WORLD_SIZE, check, crowded

pytestmark = pytest.mark.cuda

REPLAYS = 12 if crowded(WORLD_SIZE) else 100
IN_A_ROW = 6  # replays that are queued without waiting for the one before
COUNTS = [5, 4_099, 300_007]  # ll, ll_two_shot, slots


def warm(operation, rank):
    operation.fill(rank, 0)
    operation.call()
    problems = operation.check("eager", operation.outputs, 0)
    torch.cuda.synchronize()
    return problems


def replays(rank, name, count):
    operation = getattr(Operations(rank, count), name)()
    problems = warm(operation, rank)
    graph = captured(operation.call)
    done = 0
    while done < REPLAYS:
        row = range(done + 1, min(done + IN_A_ROW, REPLAYS) + 1)
        results = []
        for replay in row:
            operation.fill(rank, replay)
            graph.replay()
            results.append([tensor.clone() for tensor in operation.outputs])
        for replay, got in zip(row, results, strict=True):
            problems += operation.check(name, got, replay)
        done = row[-1]
    torch.cuda.synchronize()
    return problems


def run(body, *args, **settings):
    check(body, WORLD_SIZE, *args, **settings)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_replays_with_new_data(name, count):
    run(replays, name, count)


def several_in_one_graph(rank, count):
    operations = {name: getattr(Operations(rank, count), name)() for name in NAMES}
    problems = [line for operation in operations.values() for line in warm(operation, rank)]

    def call():
        for operation in operations.values():
            operation.call()

    graph = captured(call)
    for replay in range(1, REPLAYS // 2):
        for operation in operations.values():
            operation.fill(rank, replay)
        graph.replay()
        for name, operation in operations.items():
            problems += operation.check(name, operation.outputs, replay)
    return problems


@pytest.mark.parametrize("count", COUNTS[:2])
def test_several_collectives_in_one_graph(count):
    run(several_in_one_graph, count)


def dependent_calls(rank):
    """One graph in which each collective reads what the one before has written."""
    ops, t = Operations(rank, 1027), buffer(1027)
    gathered, mine = buffer(1027 * WORLD_SIZE), buffer(1027)

    def call():
        dist.all_reduce(t)
        dist.all_gather_into_tensor(gathered, t + rank)
        dist.reduce_scatter_tensor(mine, gathered)

    t.copy_(content(rank, 0, 0, 1027))
    call()
    graph, problems = captured(call), []
    for replay in range(1, REPLAYS // 2):
        t.copy_(content(rank, 0, replay, 1027))
        graph.replay()
        expected = (ops.total(replay) + rank) * WORLD_SIZE
        problems += model.mismatch(f"replay {replay}", mine, expected)
    return problems


def test_collectives_that_depend_on_each_other():
    run(dependent_calls)


def two_graphs_and_eager(rank):
    """Graphs and eager calls of one group take turns in every order."""
    ops = [Operations(rank, count) for count in (64, 33_333)]
    first, second = ops[0].all_reduce(), ops[1].all_gather_into_tensor()
    eager = Operations(rank, 515).reduce_scatter_tensor()
    problems = [line for operation in (first, second, eager) for line in warm(operation, rank)]
    graphs = {id(first): captured(first.call), id(second): captured(second.call)}
    for replay in range(1, REPLAYS // 2):
        order = [first, second, eager, second, first, eager][replay % 3 :]
        for operation in order:
            operation.fill(rank, replay)
            graph = graphs.get(id(operation))
            graph.replay() if graph else operation.call()
            problems += operation.check("in turns", operation.outputs, replay)
    return problems


def test_two_graphs_and_eager_calls_in_turns():
    run(two_graphs_and_eager)


def eager_algorithms_between(rank):
    """Eager calls of every size between two replays of a graph: all move the group's counters."""
    operation = Operations(rank, 2048).all_reduce()
    problems = warm(operation, rank)
    graph = captured(operation.call)
    for replay, count in enumerate([1, 700, 40_000, 1_000_003, 3, 250_000], start=1):
        other = Operations(rank, count).all_reduce()
        for one, call in ((operation, graph.replay), (other, other.call)):
            one.fill(rank, replay)
            call()
            problems += one.check(f"count {count}", one.outputs, replay)
    return problems


def test_eager_calls_of_every_size_between_replays():
    run(eager_algorithms_between)


def on_a_side_stream(rank):
    operation = Operations(rank, 5001).all_reduce_async()
    problems = warm(operation, rank)
    graph = captured(operation.call, stream=torch.cuda.Stream())
    replaying = torch.cuda.Stream()
    for replay in range(1, REPLAYS // 2):
        with torch.cuda.stream(replaying):
            operation.fill(rank, replay)
            graph.replay()
        replaying.synchronize()
        problems += operation.check("side stream", operation.outputs, replay)
    return problems


def test_capture_on_a_side_stream():
    run(on_a_side_stream)


def cold_call(rank, name):
    """Refused with the remedy; the rest of the capture, the group and the process go on."""
    group = dist.new_group(list(range(WORLD_SIZE)))
    operation = getattr(Operations(rank, 999, group), name)()
    counter, problems = torch.zeros(1, device="cuda"), []
    graph, text = torch.cuda.CUDAGraph(), ""
    with torch.cuda.graph(graph):
        counter.add_(1)
        try:
            operation.call()
        except Exception as error:
            text = str(error)
        counter.add_(10)
    if "call once before capture" not in text:
        problems.append(f"a cold call under capture: {text or 'no error'}")
    for _ in range(3):
        graph.replay()
    problems += model.mismatch("the rest of the graph", counter, torch.tensor([33.0]))
    problems += warm(operation, rank)
    graph = captured(operation.call)
    for replay in (1, 2, 3):
        operation.fill(rank, replay)
        graph.replay()
        problems += operation.check("once warm", operation.outputs, replay)
    del graph
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return problems


def captured_chain(rank, path):
    size = dist.get_world_size()
    data, came = (torch.ones(64, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def messages():
        to, source = (rank + 1) % size, (rank - 1) % size
        operations = [dist.P2POp(dist.isend, data, to), dist.P2POp(dist.irecv, came, source)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def call():
        for _ in range(6):
            dist.all_reduce(data, dist.ReduceOp.MAX, async_op=True).wait()
            messages()
            dist.all_reduce(came, dist.ReduceOp.MAX)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        call()
    graph.instantiate()
    drawing = path / f"{rank}.dot"
    graph.debug_dump(str(drawing))
    text = drawing.read_text()
    nodes = set(re.findall(r'"(\w+_node_\d+)"\[', text))
    edges = set(re.findall(r'"(\w+)"\s*->\s*"(\w+)"', text))
    graph.replay()
    torch.cuda.synchronize()
    if len(nodes) == 18 and len(edges) == 17:
        return []
    return [f"{len(nodes)} nodes, {len(edges)} edges: not a chain of 18"]


@pytest.mark.skipif(torch.version.hip is not None, reason="HIP's captures are left as they are")
def test_calls_one_after_the_other_are_a_chain(tmp_path):
    run(captured_chain, tmp_path)


@pytest.mark.parametrize("name", ["all_reduce", "all_to_all_single", "ring"])
def test_a_cold_call_under_capture(name):
    run(cold_call, name)


def long_capture(rank, mode):
    """A capture that lasts longer than any period of the group's watching thread, with a call in
    flight that the thread has an eye on."""
    operation = Operations(rank, 4001).all_reduce()
    problems = warm(operation, rank)
    flying = torch.ones(1 << 20, device="cuda")
    work = dist.all_reduce(flying, async_op=True)

    def call():
        operation.call()
        time.sleep(1.5)  # the condition under test, not a synchronisation
        operation.call()

    graph = captured(call, mode=mode)
    work.wait()
    problems += model.mismatch("in flight", flying, torch.full((1 << 20,), float(WORLD_SIZE)))
    for replay in (1, 2):
        operation.fill(rank, replay)
        graph.replay()
        expected = ops_total_twice(rank, replay)
        problems += model.mismatch(f"{mode} {replay}", operation.outputs[0], expected)
    return problems


def ops_total_twice(rank, replay):
    once = Operations(rank, 4001).total(replay)
    return once * WORLD_SIZE


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_that_lasts(mode):
    run(long_capture, mode)


def captured_barrier(rank):
    """In a group that has done nothing but a barrier that names the GPU."""
    group = dist.new_group(list(range(WORLD_SIZE)))
    store = dist.distributed_c10d._get_default_store()

    def call():
        dist.barrier(group=group, device_ids=[torch.cuda.current_device()])

    call()
    graph = captured(call)
    problems = []
    for late in range(WORLD_SIZE):
        done = torch.cuda.Event()
        if rank == late:
            others = [r for r in range(WORLD_SIZE) if r != late]
            store.wait([f"barrier of {late}/{other}" for other in others])
        graph.replay()
        done.record()
        if rank != late:
            deadline = time.monotonic() + 0.05
            while time.monotonic() < deadline:
                if done.query():
                    problems.append(f"rank {rank} left before rank {late} had come")
                    break
            store.add(f"barrier of {late}/{rank}", 1)
        done.synchronize()
    del graph
    dist.destroy_process_group(group)
    return problems


def test_a_barrier_of_a_new_group():
    run(captured_barrier)


def graph_outlives_group(rank):
    """A group may be destroyed while a graph of its calls exists; the graph is not replayed."""
    group = dist.new_group(list(range(WORLD_SIZE)))
    operation = Operations(rank, 777, group).all_reduce()
    problems = warm(operation, rank)
    graph = captured(operation.call)
    operation.fill(rank, 1)
    graph.replay()
    problems += operation.check("before", operation.outputs, 1)
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    del group
    graph.reset()
    other = Operations(rank, 777).all_reduce()
    return problems + warm(other, rank)


def test_a_graph_outlives_its_group():
    run(graph_outlives_group)


def replays_after_resume(rank):
    """The addresses in a graph are right again, and so are the counts of its calls."""
    problems = []
    operations = [Operations(rank, count).all_reduce() for count in COUNTS]
    for operation in operations:
        problems += warm(operation, rank)
    graph = captured(lambda: [operation.call() for operation in operations])
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    beside = dist.new_group()
    for replay in range(1, 5):
        for operation in operations:
            operation.fill(rank, replay)
        graph.replay()
        torch.cuda.synchronize()
        for operation in operations:
            problems += operation.check("graph", operation.outputs, replay)
        free = torch.cuda.mem_get_info()[0]
        backend.suspend()
        given_back = torch.cuda.mem_get_info()[0] - free
        if given_back < backend.memory_stats()["suspend"]:
            problems.append(f"{given_back} bytes came back of {backend.memory_stats()}")
        dist.barrier(group=beside)  # on the host: nobody has taken memory before all have looked
        backend.resume()
        for operation in operations:
            operation.fill(rank, 100 + replay)
            operation.call()
            problems += operation.check("eager", operation.outputs, 100 + replay)
    return problems


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d.Backend, "suspend"),
    reason="this torch suspends no groups",
)
@pytest.mark.alone
def test_a_graph_from_before_the_group_was_suspended():
    run(replays_after_resume, fresh=True)
