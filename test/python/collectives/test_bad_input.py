"""Wrong arguments: an exception before anything is sent, that names the argument, what was
expected and what came. Afterwards the group still works on every rank."""

import datetime
import os
import re
import time

import pytest
import torch
import torch.distributed as dist

import model
from errors import message_of, unsaid
from harness import (
    DEVICE,
    IS_SYMM,
    check,
    expect_no_mismatch,
    options_with,
    run_ranks,
)
from rank_processes import RankFailure
from refused_calls import CASES, WORLD_SIZE, ones, refused, strided

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="the texts are symm's")


def refuse_case(rank, case):
    return refused(rank, *CASES[case])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES)
def test_is_refused(case):
    check(refuse_case, WORLD_SIZE, case, timeout=10)


def test_list_of_tensors_of_different_dtypes():
    def body(rank):
        def call():
            dist.all_reduce_coalesced([ones(3), ones(3, dtype=torch.int32)])

        return refused(rank, call, ["dtype|type"])

    expect_no_mismatch(run_ranks(body, WORLD_SIZE, fresh=True))


def test_destroyed_group():
    def body(rank):
        group = dist.new_group([0, 1, 2])
        dist.all_reduce(ones(3), group=group)
        backend = group._get_backend(torch.device(DEVICE))
        dist.destroy_process_group(group)

        def through_torch():
            dist.all_reduce(ones(3), group=group)

        def below_torch():
            backend.allreduce([ones(3)], dist.AllreduceOptions()).wait()

        problems = refused(rank, through_torch, ["not initialized|[Ii]nvalid|destroyed"])
        return problems + refused(rank, below_torch, ["destroyed|shut"])

    expect_no_mismatch(run_ranks(body, WORLD_SIZE, fresh=True))


def test_group_that_the_rank_is_not_in():
    def body(rank):
        group = dist.new_group([0, 2])
        tensor = torch.full((4,), 5.0, device=DEVICE)
        if rank == 1:
            with pytest.warns(UserWarning, match="does not belong|not in the group|not part"):
                dist.all_reduce(tensor, group=group)
            return model.mismatch("outsider's tensor", tensor, torch.full((4,), 5.0))
        dist.all_reduce(tensor, group=group)
        return model.mismatch("member's tensor", tensor, torch.full((4,), 10.0))

    expect_no_mismatch(run_ranks(body, WORLD_SIZE, fresh=True))


WRONG_ENVIRONMENT = {
    "SYMM_ALGO": ("foo", ["foo", "one_shot", "two_shot", "ring", "pipelined"]),
    "SYMM_AUDIT": ("no/such/run", ["cannot write no/such/run.0: No such file"]),
    "SYMM_DETERMINISTIC": ("yes", ["yes", "0 or 1"]),
    "SYMM_DISABLE_MULTICAST": ("yes", ["yes", "0 or 1"]),
    "SYMM_FAILURE_GRACE_MS": ("soon", ["soon", "milliseconds from 0"]),
    "SYMM_HANDLE_TYPE": ("foo", ["foo", "auto, posix or fabric"]),
    "SYMM_ISA": ("foo", ["foo", "baseline", "avx2", "avx512"]),
    "SYMM_NAN_CHECK": ("yes", ["yes", "0 or 1"]),
    "SYMM_MEMORY_PROVIDER": ("foo", ["foo", "native, cuda, nccl, nvshmem"]),
    "SYMM_ON_FAILURE": ("exit", ["exit", "raise or abort"]),
    "SYMM_POISON": ("yes", ["yes", "0 or 1"]),
    "SYMM_SIGNAL_TRAP": ("yes", ["yes", "0 or 1"]),
    "SYMM_SINGLE_COPY": ("yes", ["yes", "0, 1 or auto"]),
    "SYMM_TUNING_FILE": ("no/such/file.json", ["no/such/file.json"]),
    "TORCH_FR_BUFFER_SIZE": ("many", ["many", "from 0 to 1048576"]),
    "SYMM_WATCHDOG": ("off", ["off", "0 or 1"]),
    "SYMM_WIRE": ("packet", ["packet", "ll, line or auto"]),
}


def message_of_failed_start(**set_up):
    def body(rank):
        dist.all_reduce(ones(4))

    with pytest.raises(RankFailure) as failure:
        run_ranks(body, 2, time_limit=20, timeout=10, **set_up)
    return str(failure.value)


@pytest.mark.cpu("the environment is read before the device is known")
@pytest.mark.parametrize("variable", WRONG_ENVIRONMENT)
def test_wrong_environment(variable):
    value, patterns = WRONG_ENVIRONMENT[variable]
    text = message_of_failed_start(env={variable: value})
    for pattern in [variable, *patterns]:
        assert pattern in text, text


@pytest.mark.cpu("the environment is read before the device is known")
def test_invalid_tuning_file(tmp_path):
    path = tmp_path / "tuning.json"
    for content in ("{", "[]", '{"version": "seven"}', ""):
        path.write_text(content)
        text = message_of_failed_start(env={"SYMM_TUNING_FILE": os.fspath(path)})
        assert os.fspath(path) in text, text
        assert "SYMM_TUNING_FILE" in text, text


@pytest.mark.cpu("the environment is read before the device is known")
def test_tuning_file_that_is_no_small_regular_file(tmp_path):
    fifo, large = tmp_path / "fifo", tmp_path / "large"
    os.mkfifo(fifo)
    large.touch()
    os.truncate(large, (16 << 20) + 1)
    found = {tmp_path: "a directory", fifo: "a fifo", "/dev/zero": "a device"}
    found[large] = "one of 16777217 bytes"
    for path, kind in found.items():
        start = time.monotonic()
        text = message_of_failed_start(env={"SYMM_TUNING_FILE": os.fspath(path)})
        assert time.monotonic() - start < 10, f"{kind} blocked"
        expected = f"at most 16777216 bytes, got {kind}: '{os.fspath(path)}'"
        assert "InvalidArgumentError: symm [invalid_argument]: SYMM_TUNING_FILE: " in text, text
        assert expected in text, text


@pytest.mark.cpu("the environment is read before the device is known")
@pytest.mark.parametrize("variable", ["SYMM_ALGO", "SYMM_ISA", "SYMM_TUNING_FILE"])
def test_environment_that_is_not_text(variable):
    text = message_of_failed_start(env={variable: "caf\udce9\n\x1b[31m"})
    assert "InvalidArgumentError: symm [invalid_argument]: " in text, text
    assert r"caf\xe9\x0a\x1b[31m" in text, text
    assert "UnicodeDecodeError" not in text, text


@pytest.mark.cpu("on a GPU a later call raises")
def test_group_whose_name_has_control_characters():
    def body(rank):
        name = "a\nb\x1b[31m ü"
        group = dist.group.WORLD.split_group([0, 1], None, None, name, name)
        text = message_of(RuntimeError, lambda: group.allreduce([ones(3 + rank)]).wait())
        kind = "RuntimeError: symm [mismatch]: group "
        return unsaid(text, [re.escape(kind), re.escape(r"a\x0ab\x1b[31m ü"), "rank 0", "rank 1"])

    expect_no_mismatch(run_ranks(body, 2, fresh=True))


def test_global_ranks_stand_beside_group_ranks():
    """Ranks 1 and 2 as group ranks 0 and 1: an argument, a set-up, a call and who hears of it."""

    def body(rank):
        group = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=1))
        if rank == 0:
            return []
        names = ["rank 0 (global rank 1)", "rank 1 (global rank 2)"]

        argument = message_of(ValueError, lambda: dist.recv(strided(), 3 - rank, group=group))
        problems = unsaid(argument, [f"group rank {rank - 1}, global rank {rank}, of 2"])
        if rank == 2:
            time.sleep(1.5)

        def barriers():  # whoever comes late to one may complete it, and not the next
            for _ in range(2):
                dist.barrier(group=group)

        text = message_of(RuntimeError, barriers)
        return problems + unsaid(text, [re.escape(name) for name in names])

    expect_no_mismatch(run_ranks(body, WORLD_SIZE, fresh=True))


@pytest.mark.parametrize(
    ("fields", "patterns"),
    [
        ({"algorithm": "foo"}, ["foo", "one_shot", "two_shot", "ring", "pipelined"]),
        ({"workspace_bytes": 12345}, ["workspace_bytes", "12345"]),
        ({"max_device_blocks": 0}, ["max_device_blocks", "1 to 64", "0"]),
        ({"max_device_blocks": 65}, ["max_device_blocks", "1 to 64", "65"]),
        ({"workspace_bytes": 1 << 40}, ["workspace_bytes", str(1 << 40)]),
    ],
    ids=str,
)
def test_wrong_option(fields, patterns):
    text = message_of_failed_start(options=options_with(**fields))
    for pattern in patterns:
        assert pattern in text, text


def test_unknown_option():
    assert "no_such_option" in message_of_failed_start(options=options_with(no_such_option=1))


def test_options_of_another_backend():
    def gloo_options():
        return dist.ProcessGroupGloo._Options()

    text = message_of_failed_start(options=gloo_options)
    assert "Options" in text, text
