"""Injects faults and prints how they were survived.

    python test/fault/run_faults.py --all [--json faults.json]          # with the numbers promised
    python test/fault/run_faults.py --all --scale 0.1 --minutes 2       # a tenth of them
    python test/fault/run_faults.py [--trials 50] [--only F1,F4]
    SYMM_TEST_DEVICE=cuda python test/fault/run_faults.py ...

On CUDA the survivors of F1 and F2 then make a new group on the same GPUs and check its sums. The
figures are seconds: for F1, F2, F7, F9, F19 and F19-wire from the injection until a survivor's
error; for F4, F8 and F19-store from a rank's own call until its error; for F5 from SIGCONT until
the loop's end; for F10 until the new group has given its first result; for F11 until all processes
were gone; for F12 a group's making, first call and end; for F20 a random program; for the others
the length of the trial.
The status is 1 where a trial has failed or a p99 is over its limit.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
_here = Path(__file__).resolve().parent
sys.path[:0] = [str(_here), str(_here.parent / "python" / "support")]

from rich.console import Console  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table  # noqa: E402

from catalogue import FAULTS  # noqa: E402
from harness import BACKEND, DEVICE  # noqa: E402
from machine_facts import machine  # noqa: E402
from record_file import write_records  # noqa: E402


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def inject(name: str, trials: float, report=print, advance=lambda trial: None, first=0) -> dict:
    """The row of `trials` injections, of a fault with independent ones those from number `first`
    on. `report` is given the text of each failure, `advance` each trial."""
    fault, seconds, done, passed, facts = FAULTS[name], [], 0, 0, {}
    start = time.monotonic()
    for trial in fault.run(trials, first) if first else fault.run(trials):
        done += 1
        passed += trial.passed
        seconds += trial.seconds
        facts |= trial.facts
        if not trial.passed:
            report(f"{name} trial {done - 1} failed:\n{trial.detail}\n")
        advance(trial)
    row = {"fault": name, "text": fault.text, "trials": done, "passed": passed}
    row |= {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99)}
    row |= {"max": max(seconds, default=math.nan), "figures": len(seconds)}
    row |= {"p99_limit": fault.p99_limit, "took": time.monotonic() - start}
    in_time = fault.p99_limit is None or not seconds or row["p99"] <= fault.p99_limit
    whole = done > 0 if fault.is_soak else done == trials
    return row | facts | {"ok": whole and passed == done and in_time}


def print_table(console: Console, rows: list[dict]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    for heading in ("trials", "passed", "p50 ms", "p99 ms", "max ms", "limit ms", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        figures = [f"{1e3 * row[key]:.1f}" for key in ("p50", "p99", "max")]
        limit = "" if row["p99_limit"] is None else f"{1e3 * row['p99_limit']:.0f}"
        counts = [str(row["trials"]), str(row["passed"])]
        verdict = "ok" if row["ok"] else "NOT OK"
        table.add_row(f"{row['fault']}  {row['text']}", *counts, *figures, limit, verdict)
    console.print(table)
    known = {"fault", "text", "trials", "passed", "p50", "p99", "max", "figures", "p99_limit"}
    for row in rows:
        facts = {key: value for key, value in row.items() if key not in known | {"took", "ok"}}
        if facts:
            words = ", ".join(f"{key} {value}" for key, value in facts.items())
            console.print(f"{row['fault']}: {words}", highlight=False)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="as many trials as are promised")
    parser.add_argument("--trials", type=int, default=50, help="of each fault, without --all")
    parser.add_argument("--scale", type=float, default=1.0, help="with --all: share of the trials")
    parser.add_argument(
        "--minutes", type=float, help="length of each soak; with --all an hour on a CPU, else 12 s"
    )
    parser.add_argument("--only", default=",".join(FAULTS), help="names, with commas")
    parser.add_argument("--json", type=Path, help="where the table is written")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - FAULTS.keys():
        parser.error(f"unknown fault {sorted(unknown)}, expected some of {list(FAULTS)}")
    return arguments, names


def trials_of(name: str, arguments: argparse.Namespace) -> float:
    fault = FAULTS[name]
    if fault.is_soak:
        default = fault.whole if arguments.all else 0.2
        return default if arguments.minutes is None else arguments.minutes
    if not arguments.all:
        return arguments.trials
    return max(1, round(fault.whole * arguments.scale))


def command_of(arguments: argparse.Namespace, names: list[str]) -> str:
    words = ["python test/fault/run_faults.py"]
    words += ["--all"] if arguments.all else [f"--trials {arguments.trials}"]
    words += [f"--scale {arguments.scale}"] * (arguments.all and arguments.scale != 1.0)
    words += [] if arguments.minutes is None else [f"--minutes {arguments.minutes:g}"]
    words += [f"--only {arguments.only}"] * (names != list(FAULTS))
    return " ".join(words)


def show_step(progress: Progress, task: TaskID) -> None:
    progress.advance(task)
    progress.refresh()


def run_all(console: Console, names: list[str], amount: Callable, keep: Callable) -> list[dict]:
    """The rows of all faults in `names`; `keep` is given those that are there after each."""
    rows = []
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TimeElapsedColumn()]
    # Without a thread that draws: ranks are forks of this process.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        for name in names:
            trials = amount(name)
            total = None if FAULTS[name].is_soak else trials
            task = progress.add_task(f"{name} {FAULTS[name].text}", total=total)
            row = inject(
                name,
                trials,
                report=lambda text: console.print(text, markup=False, highlight=False),
                advance=lambda trial, task=task: show_step(progress, task),
            )
            progress.remove_task(task)
            verdict = "ok" if row["ok"] else "NOT OK"
            said = f"{name}: {row['passed']} of {row['trials']}, {row['took']:.0f} s, {verdict}"
            console.print(said, highlight=False)
            rows.append(row)
            keep(rows)
    return rows


def main() -> int:
    arguments, names = parse_arguments()
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=120)  # of a log
    report = {"backend": BACKEND, "device": DEVICE, "machine": machine()}
    report |= {"command": command_of(arguments, names)}

    def keep(rows: list[dict]) -> None:
        if arguments.json:
            write_records(arguments.json, report | {"faults": rows})

    rows = run_all(console, names, lambda name: trials_of(name, arguments), keep)
    where = report["machine"]
    console.print(f"{BACKEND} on {where['cores']} cores, {where['cpu']}, torch {where['torch']}")
    print_table(console, rows)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
