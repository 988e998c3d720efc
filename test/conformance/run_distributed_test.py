"""Runs PyTorch's own distributed tests (torch.testing._internal.distributed.distributed_test,
shipped in the wheel) over a backend that they do not know, on 3 CPU ranks or 4 GPUs.

    python test/conformance/run_distributed_test.py --backend symm --json symm.json
    python test/conformance/run_distributed_test.py --backend symm --reference gloo.json
    python test/conformance/run_distributed_test.py --device cuda --jobs 20 --against nccl \\
        --time-limit 330 --json conformance.json

The tests are imported as if for gloo (on CUDA, nccl), which fixes what they skip; then the
backend's name is exchanged. Each test runs in a fork of this process, and its ranks are forks of
that one: only they use CUDA, so that nobody imports torch a second time. With --reference or
--against the exit status is 1 if a test that passes there does not pass here. --against runs the
other backend too, first on what has not passed; with --time-limit what there was no time for is
listed as not_run.
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
import unittest.mock
from pathlib import Path

DEVICE = os.environ.get("SYMM_CONFORMANCE_DEVICE", "cpu")
ON_CUDA = DEVICE == "cuda"
WORLD_SIZE = int(os.environ.get("SYMM_CONFORMANCE_RANKS", "4" if ON_CUDA else "3"))
PEER = "nccl" if ON_CUDA else "gloo"  # the backend that the tests are written for
# Before torch is imported: no GPU in the process that forks, and no thread.
os.environ.update(BACKEND=PEER, WORLD_SIZE=str(WORLD_SIZE), PYTORCH_NVML_BASED_CUDA_CHECK="1")
VISIBLE_DEVICES = os.environ.get("CUDA_VISIBLE_DEVICES")
if not ON_CUDA:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

if ON_CUDA:
    # Imported by the tests' setUp, it looks for GPUs by Triton and by Numba. Both initialise CUDA,
    # and then no fork can use it any more.
    with (
        unittest.mock.patch.object(torch.cuda, "is_available", return_value=False),
        unittest.mock.patch("torch.testing._internal.common_utils.TEST_NUMBA", False),
    ):
        import torch.testing._internal.common_device_type

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "support"))

from record_file import write_records  # noqa: E402

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
    "test_ddp_profiling_execution_trace": "the test expects the name nccl in the profile",
}

# Hidden from unittest's own collection, which would run the base classes.
_DistributedTest = distributed_test.DistributedTest
_TestDistBackend = distributed_test.TestDistBackend


class ConformanceTest(_TestDistBackend, _DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        assert not torch.cuda.is_initialized(), "a fork could not use CUDA"
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


KEEP_PERIOD = 5.0  # seconds


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


def call_like_the_peer(backend: str) -> None:
    """Exchanges the name. On CUDA the tests also ask at run time what a backend can do."""
    distributed_test.BACKEND = backend
    if ON_CUDA:
        for able in distributed_test.DistTestCases.backend_feature.values():
            if PEER in able:
                able.add(backend)


def run_all(
    names: list[str],
    backend: str,
    jobs: int,
    limit: float,
    report=print,
    deadline: float = float("inf"),
    keep=None,
) -> dict:
    """{test name: outcome}; `report` is told every test that does not pass or skip. At `deadline`
    (time.monotonic()) what runs is ended, and what is left has the status not_run. `keep` is given
    what there is every few seconds, in case that this process is ended from outside."""
    call_like_the_peer(backend)
    waiting, running, outcomes = collections.deque(names), [], {}
    kept = time.monotonic()
    while waiting or running:
        out_of_time = time.monotonic() > deadline
        if out_of_time:
            waiting.clear()
        while waiting and len(running) < jobs:
            running.append(Running(waiting.popleft()))
        for test in list(running):
            outcome = test.poll(0.0 if out_of_time else limit)
            if outcome is None:
                continue
            running.remove(test)
            if out_of_time:
                continue
            outcomes[test.name] = outcome
            if outcome["status"] == "fail":
                report(f"FAIL {test.name} over {backend} ({outcome['seconds']} s)")
                report("\n".join(f"    {line}" for line in first_lines(outcome["detail"])))
        if keep and time.monotonic() - kept > KEEP_PERIOD:
            keep(outcomes)
            kept = time.monotonic()
        time.sleep(0.005)
    missing = {"status": "not_run", "detail": "no time was left", "seconds": 0.0}
    return {name: outcomes.get(name, missing) for name in names}


def counts(outcomes: dict) -> dict:
    return dict(collections.Counter(outcome["status"] for outcome in outcomes.values()))


def regressions(outcomes: dict, reference: dict) -> list[str]:
    """Tests that pass in `reference`, do not pass in `outcomes`, and are not in CANNOT_PASS."""
    return sorted(
        name
        for name, outcome in outcomes.items()
        if name not in CANNOT_PASS
        and outcome["status"] in ("fail", "skip")
        and reference.get(name, {}).get("status") == "pass"
    )


def first_lines(detail: str, most: int = 6) -> list[str]:
    """What an error says: the lines from the last exception's own on."""
    lines = [line for line in detail.partition("\n--- output ---")[0].splitlines() if line.strip()]
    told = [i for i, line in enumerate(lines) if "Error" in line or "Exception" in line]
    last = told[-1] if told else 0
    return [line[:300] for line in lines[last : last + most]]


def report_of(outcomes: dict, backend: str, reference: dict, reference_name: str) -> dict:
    """What is written with --against: everything, and who passes what."""
    lists = {
        name: {
            status: sorted(test for test, outcome in found.items() if outcome["status"] == status)
            for status in ("pass", "skip", "fail", "not_run")
        }
        for name, found in ((backend, outcomes), (reference_name, reference))
    }
    lost = {
        name: {"status": outcomes[name]["status"], "error": first_lines(outcomes[name]["detail"])}
        for name in regressions(outcomes, reference)
    }
    return {
        "device": DEVICE,
        "world_size": WORLD_SIZE,
        "counts": {backend: counts(outcomes), reference_name: counts(reference)},
        f"pass on {reference_name} and not on {backend}": lost,
        "lists": lists,
        "outcomes": {backend: outcomes, reference_name: reference},
    }


def print_table(outcomes: dict, backend: str, seconds: float) -> None:
    print(f"\n{'status':8}{'tests':>6}   ({backend}, {WORLD_SIZE} {DEVICE} ranks, {seconds:.0f} s)")
    for status in ("pass", "skip", "fail", "not_run"):
        if status != "not_run" or status in counts(outcomes):
            print(f"{status:8}{counts(outcomes).get(status, 0):6}")
    reasons = collections.Counter(
        " ".join(o["detail"].split())[:90] for o in outcomes.values() if o["status"] == "skip"
    )
    print("\nReasons of the skipped tests:")
    for reason, number in reasons.most_common():
        print(f"{number:6}  {reason}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--device", default=DEVICE, choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60, help="seconds a test may take")
    parser.add_argument("--time-limit", type=float, help="seconds that everything may take")
    parser.add_argument("--filter", default="", help="only tests whose name contains this")
    parser.add_argument("--json", type=Path, help="where the outcomes are written")
    parser.add_argument("--reference", type=Path, help="outcomes of another backend to compare")
    parser.add_argument("--against", help="another backend to run and to compare with")
    parser.add_argument("-v", "--verbose", action="store_true", help="print why tests fail")
    return parser.parse_args()


def print_failures(outcomes: dict, verbose: bool) -> None:
    for name, outcome in sorted(outcomes.items()):
        if outcome["status"] == "fail":
            known = CANNOT_PASS.get(name)
            print(f"\nFAIL {name}" + (f" ({known})" if known else ""))
            print(outcome["detail"] if verbose else "\n".join(first_lines(outcome["detail"])))


def run_against(arguments, outcomes: dict, deadline: float) -> dict:
    """The outcomes of the other backend, those that matter most first."""
    order = {"fail": 0, "skip": 1, "pass": 2, "not_run": 3}
    names = sorted(outcomes, key=lambda name: (order[outcomes[name]["status"]], name))
    start = time.monotonic()
    reference = run_all(
        names, arguments.against, arguments.jobs, arguments.limit, deadline=deadline
    )
    print_table(reference, arguments.against, time.monotonic() - start)
    return reference


def main() -> int:
    arguments = parse_arguments()
    if arguments.device != DEVICE:  # decided before the imports above
        os.environ["SYMM_CONFORMANCE_DEVICE"] = arguments.device
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if VISIBLE_DEVICES is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = VISIBLE_DEVICES
        os.execv(sys.executable, [sys.executable, *sys.argv])

    def keep(found: dict) -> None:
        if arguments.json:
            write_records(arguments.json, json.loads(json.dumps(found, sort_keys=True)))

    start = time.monotonic()
    end = start + (arguments.time_limit or float("inf"))
    names = [name for name in all_names() if arguments.filter in name]
    outcomes = run_all(
        names, arguments.backend, arguments.jobs, arguments.limit, deadline=end, keep=keep
    )
    print_table(outcomes, arguments.backend, time.monotonic() - start)
    print_failures(outcomes, arguments.verbose)
    report, reference, reference_name = outcomes, None, ""
    if arguments.against:
        keep(outcomes)
        reference, reference_name = run_against(arguments, outcomes, end), arguments.against
        report = report_of(outcomes, arguments.backend, reference, reference_name)
    elif arguments.reference:
        reference, reference_name = json.loads(arguments.reference.read_text()), "the reference"
    keep(report)
    if reference is None:
        return int("fail" in counts(outcomes))
    lost = regressions(outcomes, reference)
    print(f"\nPass on {reference_name} and not on {arguments.backend}: {len(lost) or 'none'}")
    for name in lost:
        print(f"  {name} ({outcomes[name]['status']})")
        print("\n".join(f"      {line}" for line in first_lines(outcomes[name]["detail"])))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
