"""Injects faults and prints how they were survived.

    python test/fault/run_faults.py [--trials 50] [--only F1,F4] [--json faults.json]
    SYMM_TEST_DEVICE=cuda python test/fault/run_faults.py ...

On CUDA the survivors of F1 and F2 then make a new group on the same GPUs and check its sums. The
figures are seconds: for F1, F2, F7 and F9 from the injection until a survivor's error; for F4 and
F8 from a rank's own call until its error; for F5 from SIGCONT until the loop's end; for the others
the length of the trial.
"""

import argparse
import dataclasses
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
_here = Path(__file__).resolve().parent
sys.path[:0] = [str(_here), str(_here.parent / "python" / "support")]

import torch  # noqa: E402

import graph_faults  # noqa: E402
import misuse_faults  # noqa: E402
import process_faults  # noqa: E402
from harness import BACKEND, DEVICE, GPUS, ON_CUDA, WORLD_SIZE  # noqa: E402
from record_file import write_records  # noqa: E402
from trials import Trial  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Fault:
    text: str
    trial: Callable[[int], Trial]
    p99_limit: float | None = None  # seconds


ON_CPU = {
    "F1": Fault("kill -9 in a collective", process_faults.killed_in_a_collective, 0.1),
    "F3": Fault("fresh processes after it", process_faults.fresh_processes_after_a_kill),
    "F4": Fault("SIGSTOP beyond the time-out", process_faults.stopped_beyond_the_timeout, 2.0),
    "F5": Fault("SIGSTOP for T/2, SIGCONT", process_faults.stopped_for_half_the_timeout),
    "F6": Fault("kill -9 in init, split, destroy", process_faults.killed_during_set_up, 2.0),
    "F7": Fault("exit, abort, exception, _exit", process_faults.ended_in_another_way, 0.1),
    "F8": Fault("ranks make different calls", misuse_faults.different_calls, 2.0),
    "F9": Fault("abort() on one rank", process_faults.aborted_on_one_rank, 1.0),
    "F14": Fault("fork after init", misuse_faults.forked_after_init),
    "F15": Fault("awkward tensors", misuse_faults.awkward_tensors),
}
# What a GPU makes different; F4's stopped process would leave its kernels running there.
OF_CUDA = {
    "F1": Fault("kill -9 in a collective", process_faults.killed_in_a_collective, 1.0),
    "F2": Fault("kill -9 in a graph's replay", graph_faults.killed_in_a_replay, 1.0),
    "F3": ON_CPU["F3"],
    "F4": Fault("a rank never calls", misuse_faults.never_called, 2.0),
    "F8": ON_CPU["F8"],
    "F9": ON_CPU["F9"],
}
FAULTS = OF_CUDA if ON_CUDA else ON_CPU


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def inject(name: str, trials: int, report=print) -> dict:
    fault, seconds, passed, start = FAULTS[name], [], 0, time.monotonic()
    for index in range(trials):
        try:
            trial = fault.trial(index)
        except Exception as error:
            trial = Trial(False, [], f"{type(error).__name__}: {error}")
        passed += trial.passed
        seconds += trial.seconds
        if not trial.passed:
            report(f"{name} trial {index} failed:\n{trial.detail}\n")
    row = {"fault": name, "text": fault.text, "trials": trials, "passed": passed}
    row |= {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99)}
    row |= {"max": max(seconds, default=math.nan), "figures": len(seconds)}
    row |= {"p99_limit": fault.p99_limit, "took": time.monotonic() - start}
    in_time = fault.p99_limit is None or row["p99"] <= fault.p99_limit
    return row | {"ok": passed == trials and in_time}


def print_table(rows: list[dict]) -> None:
    print(f"{'fault':34}{'trials':>7}{'passed':>7}{'p50 s':>9}{'p99 s':>9}{'max s':>9}{'limit':>7}")
    for r in rows:
        limit = "" if r["p99_limit"] is None else f"{r['p99_limit']:.1f}"
        print(
            f"{r['fault'] + '  ' + r['text']:34}{r['trials']:7}{r['passed']:7}"
            f"{r['p50']:9.4f}{r['p99']:9.4f}{r['max']:9.4f}{limit:>7}"
            f"  {'ok' if r['ok'] else 'NOT OK'}"
        )


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--only", default=",".join(FAULTS), help="names, with commas")
    parser.add_argument("--json", type=Path, help="where the table is written")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - FAULTS.keys():
        parser.error(f"unknown fault {sorted(unknown)}, expected some of {list(FAULTS)}")

    rows = [inject(name, arguments.trials) for name in names]
    machine = {"cpu": cpu_model(), "cores": os.cpu_count(), "torch": torch.__version__}
    if ON_CUDA:
        machine |= {"gpus": GPUS, "ranks": WORLD_SIZE}
    print(f"{BACKEND} on {machine['cores']} cores, {machine['cpu']}, torch {machine['torch']}")
    print_table(rows)
    if arguments.json:
        command = f"python test/fault/run_faults.py --trials {arguments.trials}"
        command += f" --only {arguments.only}" * (names != list(FAULTS))
        report = {
            "backend": BACKEND,
            "device": DEVICE,
            "machine": machine,
            "command": command,
            "faults": rows,
        }
        write_records(arguments.json, report)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
