"""The flight record: what it says of calls, and that PyTorch's analyser finds what ranks did
differently in the files that they write when their group fails."""

import os
import pickle
import time

import pytest
import torch
import torch.distributed as dist

from errors import ERRORS, message_of
from harness import DEVICE, IS_SYMM, ON_CUDA, PROCESSES, check, run_ranks, synchronize
from programs import run_module

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="the record is symm's")

RANKS = 2


def ones(*sizes, dtype=torch.float32):
    return torch.ones(*sizes, dtype=dtype, device=DEVICE)


def record():
    import torch_symm

    return torch_symm.flight_record()


def names(entries):
    return [entry["profiling_name"] for entry in entries]


def calls_of_a_rank(rank):
    dist.all_reduce(ones(2, 3))
    dist.broadcast(ones(4, dtype=torch.bfloat16), src=1, async_op=True).wait()
    (dist.recv if rank else dist.send)(ones(5), 1 - rank)
    dist.barrier()
    synchronize()
    return record()


def test_entries_say_what_was_called():
    for rank, found in enumerate(run_ranks(calls_of_a_rank, RANKS, fresh=PROCESSES)):
        entries = found["entries"]
        message = "nccl:recv 1<-0" if rank else "nccl:send 0->1"
        barrier = "nccl:all_reduce_barrier"
        assert names(entries) == ["nccl:all_reduce", "nccl:broadcast", message, barrier]
        assert [entry["record_id"] for entry in entries] == [0, 1, 2, 3]
        assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 2, 3]
        assert [entry["is_p2p"] for entry in entries] == [False, False, True, False]
        assert [entry["state"] for entry in entries] == ["completed"] * 4
        assert entries[0]["input_sizes"] == entries[0]["output_sizes"] == [[2, 3]]
        assert entries[1]["input_dtypes"] == entries[1]["output_dtypes"] == ["BFloat16"]
        assert entries[3]["input_sizes"] == []
        for entry in entries:
            assert entry["process_group"] == ("0", "default_pg")
            assert entry["timeout_ms"] == 30_000
            created, started, completed = (
                entry[key]
                for key in (
                    "time_created_ns",
                    "time_discovered_started_ns",
                    "time_discovered_completed_ns",
                )
            )
            assert 0 < created <= started <= completed < time.time_ns()
            assert created > time.time_ns() - 60e9
        assert found["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        assert found["pg_status"]["0"] == {
            "last_enqueued_collective": 3,
            "last_started_collective": 3,
            "last_completed_collective": 3,
        }


def batch_of_a_rank(rank):
    dist.send(ones(1), 1) if rank == 0 else dist.recv(ones(1), 0)
    other = 1 - rank
    ends = [dist.P2POp(dist.isend, ones(6), other), dist.P2POp(dist.irecv, ones(6), other)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    dist.all_reduce(ones(1))
    synchronize()
    return record()["entries"]


def test_messages_of_a_batch_have_one_number_and_an_end():
    for entries in run_ranks(batch_of_a_rank, RANKS, fresh=PROCESSES):
        batch = entries[1:4]
        assert [name.split(" ")[0] for name in names(batch)] == [
            "nccl:send",
            "nccl:recv",
            "nccl:coalesced",
        ]
        assert all(entry["is_p2p"] and entry["state"] == "completed" for entry in batch)
        numbers = [entry["p2p_seq_id"] for entry in entries]
        assert numbers[1] == numbers[2] == numbers[3] == numbers[0] + 1
        # No message has the number of a collective.
        assert min(numbers) > entries[-1]["collective_seq_id"] == 1


def states_on_the_way(rank):
    if rank == 0:
        work = dist.all_reduce(ones(3), async_op=True)
        later = dist.all_reduce(ones(3), async_op=True)
        deadline = time.monotonic() + 20
        while (state := record()["entries"][0]["state"]) == "scheduled" and not ON_CUDA:
            assert time.monotonic() < deadline
        states = [state, record()["entries"][1]["state"]]
        dist.distributed_c10d._get_default_store().set("seen", "1")
        work.wait()
        later.wait()
        return states
    dist.distributed_c10d._get_default_store().wait(["seen"])
    for _ in range(2):
        dist.all_reduce(ones(3))
    return None


@pytest.mark.cpu("a device may not have begun")
def test_a_call_is_scheduled_then_started():
    assert run_ranks(states_on_the_way, RANKS, fresh=PROCESSES)[0] == ["started", "scheduled"]


def refused_calls(rank):
    dist.all_reduce(ones(3))
    message_of(ERRORS, dist.broadcast, ones(3), src=7)
    message_of(ERRORS, dist.all_reduce, ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG)
    dist.all_reduce(ones(3))
    return [entry["record_id"] for entry in record()["entries"]]


def test_a_refused_call_leaves_no_entry():
    assert run_ranks(refused_calls, RANKS, fresh=PROCESSES) == [[0, 1]] * RANKS


def forked_child(rank):
    dist.all_reduce(ones(3))
    child = os.fork()
    if child == 0:
        os._exit(len(record()["entries"]))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), len(record()["entries"])


def test_a_forked_child_has_a_record_of_its_own():
    assert run_ranks(forked_child, RANKS, fresh=PROCESSES) == [(0, 1)] * RANKS


def many_calls(rank):
    for size in range(1, 8):
        dist.all_reduce(ones(size))
    return [(e["record_id"], e["input_sizes"]) for e in record()["entries"]]


def test_the_ring_keeps_the_last_calls():
    kept = run_ranks(many_calls, RANKS, fresh=PROCESSES, env={"TORCH_FR_BUFFER_SIZE": "3"})
    assert kept == [[(4, [[5]]), (5, [[6]]), (6, [[7]])]] * RANKS


def no_record(rank):
    dist.all_reduce(ones(3))
    return message_of(RuntimeError, record)


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_ring_of_size_0_is_no_record(name):
    for text in run_ranks(no_record, RANKS, fresh=PROCESSES, env={name: "0"}):
        assert "flight_record: nothing is recorded" in text


def every_kind(rank):
    """Each collective and message once, in the forms that c10d has; the ranks agree."""
    both = [ones(4), ones(4)]
    dist.all_reduce(ones(4))
    dist.all_reduce_coalesced([ones(4), ones(2, 2)])
    dist.reduce(ones(4), dst=1)
    dist.broadcast(ones(4), src=0)
    dist.all_gather(both, ones(4))
    dist.all_gather_into_tensor(ones(8), ones(4))
    dist.all_gather_coalesced([[ones(4), ones(3)], [ones(4), ones(3)]], [ones(4), ones(3)])
    dist.reduce_scatter(ones(4), both)
    dist.reduce_scatter_tensor(ones(4), ones(8))
    dist.gather(ones(4), both if rank == 0 else None, dst=0)
    dist.scatter(ones(4), both if rank == 0 else None, src=0)
    dist.all_to_all_single(ones(8), ones(8))
    dist.all_to_all_single(ones(3 + rank), ones(3 + rank), [1 + rank, 2], [1 + rank, 2])
    dist.all_to_all([ones(4), ones(4)], [ones(4), ones(4)])
    dist.barrier()
    (dist.recv if rank else dist.send)(ones(5), 1 - rank)
    pair = dist.new_group([0, 1])
    dist.all_reduce(ones(4), group=pair)
    synchronize()


def wrong_size(rank):
    dist.all_reduce(ones(8 + rank))


def wrong_operation(rank):
    dist.broadcast(ones(8), src=0) if rank else dist.all_reduce(ones(8))


def fail_after_all(rank, wrong):
    every_kind(rank)
    try:
        wrong(rank)
        dist.barrier()
        synchronize()
    except dist.DistBackendError:
        return [] if os.path.exists(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)) else ["-"]
    return ["nothing was raised"]


def analyse(folder):
    """What the analyser says of the files in `folder`."""
    module = "torch.distributed.flight_recorder.fr_trace"
    done = run_module(module, str(folder), "-p", "trace_", timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (wrong_size, "SIZE_OR_SYNTAX_MISMATCH"),
        (wrong_operation, "COLLECTIVE_TYPE_MISMATCH"),
    ],
)
def test_the_analyser_finds_the_mismatch(tmp_path, wrong, error):
    env = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}
    check(fail_after_all, RANKS, wrong, fresh=PROCESSES, env=env, timeout=10)
    said = analyse(tmp_path)
    assert "Culprit rank 1; Error type: " + error in said
    if ON_CUDA:  # a rank may have gone on to the barrier before it learns of the failure
        return
    found = [pickle.loads((tmp_path / f"trace_{rank}").read_bytes()) for rank in range(RANKS)]
    numbers = [run["entries"][-1]["collective_seq_id"] for run in found]
    # Of the default group's calls the last one is wrong, and nothing else.
    wrong_numbers = [line for line in said.splitlines() if "has errors" in line]
    assert len(wrong_numbers) == 1, said
    assert f"sequence number: {numbers[0]} has errors" in wrong_numbers[0]
    assert "Not all ranks joining" not in said
    assert "MISMATCH \n" not in said


def a_rank_comes_late(rank):
    dist.all_reduce(ones(3))
    path = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)
    synchronize()
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["failed"])
        # Who comes late may find the data of all others, and completes the call.
        message_of(ERRORS, lambda: [dist.all_reduce(ones(4)) for _ in range(2)])
        return pickle.loads(open(path, "rb").read())
    text = message_of(dist.DistBackendError, dist.all_reduce, ones(4))
    if not ON_CUDA:
        assert "Timed out" in text
    first = os.stat(path).st_mtime_ns
    message_of(dist.DistBackendError, dist.all_reduce, ones(4))
    dist.distributed_c10d._get_default_store().set("failed", "1")
    assert os.stat(path).st_mtime_ns == first  # once
    return pickle.loads(open(path, "rb").read())


@pytest.mark.cpu("the next call, not this one, raises")
def test_each_rank_writes_once_when_the_group_has_failed(tmp_path):
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/none", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/t_"}
    waiting, late = run_ranks(a_rank_comes_late, RANKS, fresh=PROCESSES, env=env, timeout=2)
    assert [e["state"] for e in waiting["entries"]] == ["completed", "started"]
    assert waiting["pg_status"]["0"]["last_completed_collective"] == 1
    assert waiting["pg_status"]["0"]["last_started_collective"] == 2
    assert late["entries"][0]["state"] == "completed"
    assert sorted(os.listdir(tmp_path)) == ["t_0", "t_1"]
