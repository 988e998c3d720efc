"""What every rank executes: the groups, then what is left of the cases."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.examine import Surroundings, examine
from torch_symm.tools.probe.operations import OPERATIONS
from torch_symm.tools.probe.verdict import Finding, Result, Verdict, worst
from torch_symm.tools.ranks.process import Messenger, RankContext


def probe_rank(
    context: RankContext, assignment: tuple[ProbeConfig, int], messenger: Messenger
) -> None:
    """Be one rank of a set that the supervisor started: examine the cases from a first one on.

    Sends each Result from rank 0. Returns after a case that leaves the processes in doubt, with the
    groups left alone; then a fresh set of ranks must take up the next case.
    """
    config, first_case = assignment
    store = context.connect(config.timeout_s)
    around = Surroundings.join(config, context.rank, store, messenger)
    groups: dict[str, dist.ProcessGroup] = {}
    sound = True
    for case in range(first_case, len(config.cases)):
        around.case = case
        result = _examine_case(around, groups)
        around.send(result)
        sound = result.verdict.good and not config.isolate
        if not sound:
            break
    around.leave(sound)


def _examine_case(around: Surroundings, groups: dict[str, dist.ProcessGroup]) -> Result:
    """Examine one operation on one backend at every size; the first bad verdict ends it."""
    config = around.config
    backend, name = config.cases[around.case]
    operation = OPERATIONS[name]
    around.begin_case()
    around.progress("making the group")
    timeout = timedelta(seconds=config.timeout_s)
    findings = [Finding(Verdict.CAPTURES)]
    for size in config.sizes[:1] if operation.cold else config.sizes:
        if operation.cold or backend not in groups:
            groups[backend] = dist.new_group(backend=backend, timeout=timeout)
        findings = examine(around, operation, size, groups[backend])
        if not all(finding.verdict.good for finding in findings):
            break
    return worst(backend, name, findings)
