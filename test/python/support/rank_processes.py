"""Ranks that are forks of this process, and how a report of what became of them reads."""

from torch_symm.tools.ranks.supervisor import RankReport, Supervisor


class RankFailure(AssertionError):
    """At least one rank failed or hung; the message has what every rank was doing."""


def _without_messenger(rank, messenger, function, args):
    return function(rank, *args)


def start_ranks(function, world_size, args=()) -> Supervisor:
    """`function(rank, *args)` begins to run in `world_size` processes."""
    return Supervisor(_without_messenger, range(world_size), (function, args))


def run_processes(function, world_size, *args, time_limit=60.0) -> list[RankReport]:
    """Runs `function(rank, *args)` on `world_size` processes; reports, whatever happened."""
    return start_ranks(function, world_size, args).finish(time_limit)


def describe(reports: list[RankReport]) -> str:
    lines = []
    for r in reports:
        how = "returned" if r.returned else f"exit code {r.exit_code}"
        if r.stacks:
            how = "still running at the time limit or after another rank had failed; killed"
        lines.append(f"--- rank {r.rank}: {how} after {r.seconds:.2f} s")
        if r.error:
            lines.append(r.error.rstrip())
        if r.stacks:
            lines.append(r.stacks.rstrip())
    return "\n".join(lines)
