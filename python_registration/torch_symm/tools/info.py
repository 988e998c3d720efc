"""What this installation is, and what it can do on this machine.

    python -m torch_symm.info           # a table
    python -m torch_symm.info --json    # the same for programs
    torchrun ... -m torch_symm.info --group    # also where the launcher's ranks are

The exit status is 1 where torch_symm cannot be used, and the output says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(add_completion=False)

# Each variable with what it means; docs describe them.
VARIABLES = {
    "SYMM_ALGO": "algorithm forced for every collective that has it",
    "SYMM_AUDIT": "path of the audit's files, to which a rank adds its number",
    "SYMM_CHECK": "1: kernels over torch_symm.triton check peers and addresses on GPUs too",
    "SYMM_DEFAULT_BACKEND": "1: programs that name no backend get symm",
    "SYMM_DETERMINISTIC": "0: algorithms may be named whose sums have other bits",
    "SYMM_DISABLE_MULTICAST": "1: no multicast objects on GPUs",
    "SYMM_FAILURE_GRACE_MS": "how long after a failure SYMM_ON_FAILURE=abort waits",
    "SYMM_HANDLE_TYPE": "how GPU memory is handed to other processes",
    "SYMM_HOST_ID": "what this rank says its host is; by default the kernel's boot id",
    "SYMM_INTER_HOST": "the backend that carries bytes between hosts: auto, none or its name",
    "SYMM_ISA": "instruction set of the host kernels",
    "SYMM_MEMORY_PROVIDER": "who makes the symmetric memory of torch_symm's functions",
    "SYMM_NAN_CHECK": "1: inputs with NaN are refused",
    "SYMM_ON_FAILURE": "abort: a group that fails on a GPU ends the process",
    "SYMM_POISON": "0: kernels that give up leave their outputs as they are",
    "SYMM_RACE_CHECK": "1: Triton's interpreter looks for races between ranks",
    "SYMM_REPLACE_BACKEND": "the backend whose name stands for symm",
    "SYMM_RETURN_WORK": "1: calls return a Work also where nothing is to be waited for",
    "SYMM_SIGNAL_TRAP": "1: signals of symmetric memory that time out on a GPU end its context",
    "SYMM_SINGLE_COPY": "1: ranks read ordinary memory of each other's processes",
    "SYMM_TIMELINE": "1: kernels over torch_symm.triton write when puts and waits begin and end",
    "SYMM_TUNING_FILE": "path of a tuning table",
    "SYMM_WIRE": "how small collectives on GPUs travel: ll, line or auto",
}


def collect() -> dict[str, Any]:
    """All facts as plain values, with the layouts of this process's groups of symm. Loads torch and
    the compiled module; raises nothing."""
    import torch

    from torch_symm import _build_info, _environment, _registration
    from torch_symm.tools.machine import driver_version, visible_gpus

    facts: dict[str, Any] = {
        "version": _build_info.VERSION,
        "built_for_torch": _build_info.TORCH_VERSION,
        "running_torch": torch.__version__,
        "build": {
            "compiler": _build_info.COMPILER,
            "type": _build_info.BUILD_TYPE,
            "sanitizers": _build_info.SANITIZE,
        },
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "gpu": {
            "driver": driver_version(),
            "torch_cuda": torch.version.cuda,
            "visible": visible_gpus(),
        },
        "usable": True,
        "problem": "",
    }
    checks = dict(_environment.CHECKS)
    try:
        compiled = _registration.load()
    except ImportError as error:
        facts |= {"usable": False, "problem": str(error)}
    else:
        checks |= {name: compiled.environment_value for name in VARIABLES if name not in checks}
        facts["devices"] = {"cpu": ""} | {
            device: compiled.device_library_problem(device) for device in ("cuda", "hip")
        }
        switches = compiled.multicast_switches()
        disabled_by = [name for name, off in switches.items() if off]
        facts["gpu"]["multicast"] = {
            "allowed": not disabled_by,
            "disabled_by": disabled_by,
            "variables": {name: os.environ.get(name) for name in switches},
        }
    environment = {name: _variable(name, checks.get(name)) for name in VARIABLES}
    facts["isa"] = environment["SYMM_ISA"]["value"]
    facts["environment"] = environment
    engine = environment["SYMM_INTER_HOST"]["value"]
    facts["between_hosts"] = None
    if engine is not None:
        facts["between_hosts"] = _between_hosts(engine)
    facts["groups"] = _groups() if "devices" in facts else []
    if problems := list(filter(None, (environment[name]["problem"] for name in checks))):
        facts["usable"] = False
        facts["problem"] = facts["problem"] or "; ".join(problems)
    return facts


def _between_hosts(wish: str) -> dict[str, Any]:
    """What would carry tensors on the CPU, and CUDA tensors, between hosts, and what is wrong with
    either."""
    from torch_symm import _engines

    if wish == "none":
        problem = "groups are of one host"
        return {
            "engine": "none",
            "problem": problem,
            "gpus": {"engine": "none", "problem": problem},
        }
    cpu, cuda = _engines.by_device(wish)
    problem = _engines.gpu_problem(cuda)
    staged = cuda == cpu or (wish == "auto" and problem != "")
    gpus = {"engine": f"{cpu} through the CPU's memory", "problem": ""}
    if not staged:
        gpus = {"engine": cuda, "problem": problem}
    return {"engine": cpu, "problem": _engines.problem(cpu), "gpus": gpus}


def _variable(name: str, check: Callable[[str], Any] | None) -> dict[str, Any]:
    facts = {"set_to": os.environ.get(name), "value": None, "problem": ""}
    try:
        facts["value"] = None if check is None else check(name)
    except ValueError as error:
        facts["problem"] = str(error)
    return facts | {"meaning": VARIABLES[name]}


def _groups() -> list[dict[str, Any]]:
    from torch.distributed import distributed_c10d as c10d

    from torch_symm import host_layout

    layouts = []
    for group in list(c10d._world.pg_map):
        # Left out: those of another backend, and those without one for the CPU.
        with contextlib.suppress(ValueError, RuntimeError):
            layouts.append(host_layout(group))
    return layouts


def collect_in_group() -> dict[str, Any] | None:
    """The facts, with those of a group of the ranks that a launcher has started. None on the ranks
    that have nothing to tell: all but rank 0, where the group can be made. Collective."""
    import torch.distributed as dist

    try:
        dist.init_process_group("symm")
    except (ValueError, RuntimeError) as error:
        return collect() | {"usable": False, "problem": str(error)}
    facts = collect() if dist.get_rank() == 0 else None
    dist.destroy_process_group()
    return facts


def show(facts: dict[str, Any]) -> None:
    """Prints the facts for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("torch_symm", facts["version"])
    table.add_row("torch", f"{facts['running_torch']}, built for {facts['built_for_torch']}")
    table.add_row("compiler", f"{facts['build']['compiler']}, {facts['build']['type']}")
    table.add_row("machine", f"{facts['machine']}, {facts['cpus']} usable processors")
    if facts["isa"]:
        table.add_row("host kernels", facts["isa"])
    for device, problem in facts.get("devices", {}).items():
        table.add_row(device, problem or "available")
    _show_gpu(table, facts["gpu"])
    if between := facts["between_hosts"]:
        for title, way in (("between hosts", between), ("GPUs between hosts", between["gpus"])):
            problem = way["problem"]
            table.add_row(title, f"nothing: {problem}" if problem else way["engine"])
    for layout in facts["groups"]:
        table.add_row(f"group {layout['group']}", _described(layout))
    for name, variable in facts["environment"].items():
        value = "not set" if variable["set_to"] is None else repr(variable["set_to"])
        if variable["value"] not in (None, "", variable["set_to"]):
            value += f", so {variable['value']}"
        table.add_row(name, f"{value} ({variable['meaning']})")
    table.add_row("usable", "yes" if facts["usable"] else f"no: {facts['problem']}")
    Console(highlight=False, soft_wrap=True).print(table, markup=False)


def _described(layout: dict[str, Any]) -> str:
    hosts = [
        f"{name}: {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        for name, ranks in layout["hosts"].items()
    ]
    between = layout["between_hosts"]
    legs = "symm" if between is None else f"symm inside each host, {between} between them"
    return f"{'; '.join(hosts)} ({legs})"


def _show_gpu(table: Table, gpu: dict[str, Any]) -> None:
    table.add_row("GPU driver", gpu["driver"] or "none found")
    for index, device in enumerate(gpu["visible"]):
        memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
        text = f"{device['name']}, {memory}, compute capability {device['capability']}"
        table.add_row(f"GPU {index}", text)
    if not gpu["visible"]:
        table.add_row("GPUs", "torch sees none")
    if "multicast" in gpu:
        names = " and ".join(f"{name}=1" for name in gpu["multicast"]["disabled_by"])
        table.add_row("GPU multicast", f"off, by {names}" if names else "allowed")


@app.command()
def main(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help="Make a group of the ranks that torchrun has started, and tell which of them are "
            "on which host and what carries bytes; rank 0 prints.",
        ),
    ] = False,
) -> None:
    """Prints versions, instruction sets, devices and environment; exits with 1 if unusable."""
    facts = collect_in_group() if group else collect()
    if facts is None:
        return
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show(facts)
    if not facts["usable"]:
        raise typer.Exit(1)
