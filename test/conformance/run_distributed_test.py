"""Runs PyTorch's own distributed tests (torch.testing._internal.distributed.distributed_test,
shipped in the wheel) over a backend that they do not know, on 3 CPU ranks.

    python test/conformance/run_distributed_test.py --backend symm --json symm.json
    python test/conformance/run_distributed_test.py --backend gloo --json gloo.json
    python test/conformance/run_distributed_test.py --backend symm --reference gloo.json

The tests are imported as if for gloo, which fixes what they skip; then the backend's name is
exchanged. Each test runs in a fork of this process, and its ranks are forks of that one. With
--reference the exit status is 1 if a test that passes there does not pass here.
"""

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

WORLD_SIZE = 3
# Before torch is imported: no GPU, no thread in the process that forks.
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD_SIZE), CUDA_VISIBLE_DEVICES="")
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

from torch.testing._internal.distributed import distributed_test  # noqa: E402

# Tests that no backend of another name can pass, or that ask for what symm does not do by design;
# docs/conformance.md names the lines.
_BY_NAME = "torch.distributed refuses monitored_barrier to every backend but the one named gloo"
_NO_BRANCH = "the test makes its model only for the backends named gloo, nccl and mpi"
CANNOT_PASS = {
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": "the test expects the words of gloo's own error",
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_accumulate_gradients_no_sync": _NO_BRANCH,
    "test_accumulate_gradients_no_sync_allreduce_hook": _NO_BRANCH,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _NO_BRANCH,
    "test_accumulate_gradients_no_sync_grad_is_view": _NO_BRANCH,
    "test_ddp_logging_data_cpu": "torch calls the backend of every plugin 'custom' in DDP's log",
    "test_sparse_all_reduce_sum": "symm refuses sparse tensors",
}

# Hidden from unittest's own collection, which would run the base classes.
_DistributedTest = distributed_test.DistributedTest
_TestDistBackend = distributed_test.TestDistBackend


class ConformanceTest(_TestDistBackend, _DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


def all_names() -> list[str]:
    return unittest.TestLoader().getTestCaseNames(ConformanceTest)


def _run_in_this_process(name: str, folder: str) -> dict:
    (Path(folder) / "barrier").mkdir()
    os.environ["TEMP_DIR"] = folder
    result = unittest.TestResult()
    unittest.TestSuite([ConformanceTest(name)]).run(result)
    if result.skipped:
        return {"status": "skip", "detail": result.skipped[0][1]}
    broken = result.failures + result.errors + [(None, t) for t in result.unexpectedSuccesses]
    if broken:
        return {"status": "fail", "detail": str(broken[0][1])[-6000:]}
    return {"status": "pass", "detail": ""}


def _start(name: str, folder: str) -> int:
    """Forks the process of one test, the leader of a process group of its own."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    log = os.open(f"{folder}/log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        outcome = _run_in_this_process(name, folder)
    except BaseException:
        outcome = {"status": "fail", "detail": traceback.format_exc()}
    Path(folder, "outcome.json").write_text(json.dumps(outcome))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Running:
    def __init__(self, name: str):
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="symm_conformance_")
        self.start = time.monotonic()
        self.pid = _start(name, self.folder.name)

    def poll(self, limit: float) -> dict | None:
        """The outcome once the test has ended, or has been ended after `limit` seconds."""
        seconds = time.monotonic() - self.start
        done, _ = os.waitpid(self.pid, os.WNOHANG)
        if not done and seconds < limit:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also ranks that outlived their test
        if not done:
            os.waitpid(self.pid, 0)
        path = Path(self.folder.name, "outcome.json")
        late = {"status": "fail", "detail": f"still running after {limit:.0f} s; killed"}
        outcome = json.loads(path.read_text()) if path.exists() else late
        if outcome["status"] == "fail":
            log = Path(self.folder.name, "log").read_text(errors="replace")
            outcome["detail"] += "\n--- output ---\n" + log[-4000:]
        outcome["seconds"] = round(seconds, 2)
        self.folder.cleanup()
        return outcome


def run_all(names: list[str], backend: str, jobs: int, limit: float, report=print) -> dict:
    """{test name: outcome}; `report` is told every test that does not pass or skip."""
    distributed_test.BACKEND = backend
    waiting, running, outcomes = collections.deque(names), [], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Running(waiting.popleft()))
        for test in list(running):
            outcome = test.poll(limit)
            if outcome is None:
                continue
            running.remove(test)
            outcomes[test.name] = outcome
            if outcome["status"] == "fail":
                report(f"FAIL {test.name} ({outcome['seconds']} s)")
        time.sleep(0.005)
    return outcomes


def counts(outcomes: dict) -> dict:
    return dict(collections.Counter(outcome["status"] for outcome in outcomes.values()))


def regressions(outcomes: dict, reference: dict) -> list[str]:
    """Tests that pass in `reference`, not in `outcomes`, and are not in CANNOT_PASS."""
    return sorted(
        name
        for name, outcome in outcomes.items()
        if name not in CANNOT_PASS
        and outcome["status"] != "pass"
        and reference.get(name, {}).get("status") == "pass"
    )


def print_table(outcomes: dict, backend: str, seconds: float) -> None:
    print(f"\n{'status':8}{'tests':>6}   ({backend}, {WORLD_SIZE} ranks, {seconds:.0f} s)")
    for status in ("pass", "skip", "fail"):
        print(f"{status:8}{counts(outcomes).get(status, 0):6}")
    reasons = collections.Counter(
        " ".join(o["detail"].split())[:90] for o in outcomes.values() if o["status"] == "skip"
    )
    print("\nReasons of the skipped tests:")
    for reason, number in reasons.most_common():
        print(f"{number:6}  {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60, help="seconds a test may take")
    parser.add_argument("--filter", default="", help="only tests whose name contains this")
    parser.add_argument("--json", type=Path, help="where the outcomes are written")
    parser.add_argument("--reference", type=Path, help="outcomes of another backend to compare")
    parser.add_argument("-v", "--verbose", action="store_true", help="print why tests fail")
    arguments = parser.parse_args()

    start = time.monotonic()
    names = [name for name in all_names() if arguments.filter in name]
    outcomes = run_all(names, arguments.backend, arguments.jobs, arguments.limit)
    print_table(outcomes, arguments.backend, time.monotonic() - start)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1, sort_keys=True))
    for name, outcome in sorted(outcomes.items()):
        if outcome["status"] == "fail":
            print(f"\nFAIL {name}" + f" ({CANNOT_PASS[name]})" * (name in CANNOT_PASS))
            if arguments.verbose:
                print(outcome["detail"])
    if not arguments.reference:
        return int("fail" in counts(outcomes))
    lost = regressions(outcomes, json.loads(arguments.reference.read_text()))
    print(f"\nPass in {arguments.reference.name} and not on {arguments.backend}: {lost or 'none'}")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
