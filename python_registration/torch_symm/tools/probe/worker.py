"""What every rank executes: the groups, then what is left of the cases."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.examine import Recorder, Surroundings, examine, examine_cold, record
from torch_symm.tools.probe.operations import OPERATIONS
from torch_symm.tools.probe.verdict import Finding, Result, Verdict, worst
from torch_symm.tools.ranks.device import open_device
from torch_symm.tools.ranks.process import Messenger, RankContext

_SET_UP_S = 120.0


def probe_rank(context: RankContext, assignment: dict, messenger: Messenger) -> None:
    """Be one rank of a set that the supervisor started."""
    config = ProbeConfig.from_json(assignment["config"])
    store = context.connect(config.timeout_s)
    run_worker(config, context.rank, store, messenger, assignment["case"])


def run_worker(
    config: ProbeConfig,
    rank: int,
    store: dist.Store,
    messenger: Messenger,
    first_case: int,
    recorder: Recorder = record,
) -> None:
    """Examine the cases from ``first_case`` on and send each Result from rank 0. Collective.

    Returns after a case that leaves the processes in doubt, with the groups left alone; then a
    fresh set of ranks must take up the next case. ``store`` reaches all ranks.
    """
    torch.set_num_threads(1)
    device = open_device(config.device)
    messenger.begin("connecting the ranks", _SET_UP_S)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("probe_groups", store),
        rank=rank,
        world_size=config.ranks,
        # A rank that waits here for one whose backend hangs must not be the one that complains.
        timeout=timedelta(seconds=2 * config.case_s + config.timeout_s),
    )
    around = Surroundings(
        config=config,
        rank=rank,
        device=device,
        control=dist.group.WORLD,
        store=dist.PrefixStore("probe_checks", store),
        recorder=recorder,
        progress=lambda what: None,
        complain=messenger.complain,
    )
    groups: dict[str, dist.ProcessGroup] = {}
    for case in range(first_case, len(config.cases)):
        result = _examine_case(around, messenger, case, groups)
        if rank == 0:
            messenger.send(result)
        if config.isolate or not result.verdict.good:
            messenger.finish()
            return
    messenger.finish()
    dist.destroy_process_group()


def _examine_case(
    around: Surroundings, messenger: Messenger, case: int, groups: dict[str, dist.ProcessGroup]
) -> Result:
    """Examine one operation on one backend at every size; the first bad verdict ends it."""
    config = around.config
    backend, name = config.cases[case]
    operation = OPERATIONS[name]
    deadline = time.monotonic() + config.case_s

    def progress(what: str) -> None:
        left_s = max(deadline - time.monotonic(), 0.0)
        messenger.begin(f"{name} on {backend}: {what}", left_s, case)

    around.progress = progress
    progress("making the group")
    timeout = timedelta(seconds=config.timeout_s)
    if backend not in groups and not operation.cold:
        groups[backend] = dist.new_group(backend=backend, timeout=timeout)
    findings = [Finding(Verdict.CAPTURES)]
    for size in config.sizes[:1] if operation.cold else config.sizes:
        if operation.cold:
            cold = dist.new_group(backend=backend, timeout=timeout)
            findings = examine_cold(around, operation, size, cold)
        else:
            findings = examine(around, operation, size, groups[backend])
        if not all(finding.verdict.good for finding in findings):
            break
    return worst(backend, name, findings)
