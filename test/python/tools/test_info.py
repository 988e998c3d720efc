"""torch_symm.info tells what symm can do on this machine's GPUs, and why not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest
import torch

from programs import run_module, run_module_on_hosts
from torch_symm import _environment
from torch_symm.tools.info import VARIABLES

pytestmark = pytest.mark.timeout(60)

SWITCHES = ("SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")


def run_info(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it with these switches alone. It sees no GPU: where multicast must stay off, no process
    that could reach one goes without the switches."""
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return _run(environment | variables, *options)


def _run(environment: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return run_module("torch_symm.info", *options, env=environment, timeout=50)


def test_every_variable_of_the_python_part_is_told() -> None:
    assert set(_environment.CHECKS) <= set(VARIABLES)


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_turns_multicast_off(switch: str) -> None:
    done = run_info("--json", **{switch: "1"})
    assert done.returncode == 0, done.stdout
    multicast = json.loads(done.stdout)["gpu"]["multicast"]
    assert multicast["allowed"] is False
    assert multicast["disabled_by"] == [switch]
    assert multicast["variables"] == {name: "1" if name == switch else None for name in SWITCHES}


def test_other_values_leave_multicast_on() -> None:
    others = {"SYMM_DISABLE_MULTICAST": "0", "NVSHMEM_DISABLE_NVLS": "0"}
    multicast = json.loads(run_info("--json", **others).stdout)["gpu"]["multicast"]
    assert multicast["allowed"] is True
    assert multicast["disabled_by"] == []


def test_a_wrong_switch_is_named() -> None:
    done = run_info("--json", SYMM_DISABLE_MULTICAST="yes")
    assert done.returncode == 1
    assert "SYMM_DISABLE_MULTICAST: expected 0 or 1" in json.loads(done.stdout)["problem"]


def test_the_table_tells_about_gpus() -> None:
    text = run_info(TORCH_SYMM_MEM_DISABLE_MULTICAST="1").stdout
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "GPU multicast off, by TORCH_SYMM_MEM_DISABLE_MULTICAST=1" in lines
    assert "GPUs torch sees none" in lines


def test_what_would_carry_bytes_between_hosts_is_told() -> None:
    def between(**variables: str) -> dict:
        return json.loads(run_info("--json", **variables).stdout)["between_hosts"]

    by_default = between()
    assert (by_default["engine"], by_default["problem"]) == ("gloo", "")
    assert by_default["gpus"] == {"engine": "gloo through the CPU's memory", "problem": ""}
    by_device = between(SYMM_INTER_HOST="cpu:gloo,cuda:nccl")
    assert (by_device["engine"], by_device["gpus"]["engine"]) == ("gloo", "nccl")
    assert by_device["gpus"]["problem"] != ""  # no GPU is visible
    assert between(SYMM_INTER_HOST="none")["problem"] == "groups are of one host"
    assert "no backend 'mpi2'" in between(SYMM_INTER_HOST="mpi2")["problem"]
    lines = run_info(SYMM_INTER_HOST="none").stdout.splitlines()
    assert "between hosts nothing: groups are of one host" in [" ".join(x.split()) for x in lines]


@pytest.mark.cpu("of a group over several hosts")
def test_the_ranks_of_a_launcher_are_told_with_their_hosts() -> None:
    first, *others = run_module_on_hosts("torch_symm.info", ["a", "b", "b"], "--group", timeout=50)
    assert [done.returncode for done in (first, *others)] == [0, 0, 0], first.stderr
    assert [done.stdout for done in others] == ["", ""]
    legs = "symm inside each host, gloo between them"
    assert f"group 0 a: rank 0; b: ranks 1, 2 ({legs})" in " ".join(first.stdout.split())


@pytest.mark.cpu("of a group over several hosts")
def test_a_group_that_cannot_be_is_told_with_its_reason() -> None:
    facts = json.loads(run_info("--json", "--group").stdout)
    assert facts["usable"] is False
    assert "environment variable" in facts["problem"]
    assert facts["groups"] == []


@pytest.mark.cuda
def test_a_gpu_is_described() -> None:
    facts = json.loads(_run(os.environ, "--json").stdout)
    assert facts["devices"]["cuda"] == ""
    assert facts["gpu"]["driver"]
    names = [gpu["name"] for gpu in facts["gpu"]["visible"]]
    assert names == [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
