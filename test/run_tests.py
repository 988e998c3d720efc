#!/usr/bin/env python3
"""Runs the Python tests, several files at once, and prints one table.

    python test/run_tests.py                          # all of them on the CPU
    python test/run_tests.py -m "not long"            # what `make test` runs
    python test/run_tests.py --device cuda --gpu-tests build/.../symm_gpu_tests

This process imports torch and never uses it: each file is run by pytest in a fork of it, so that
neither a file nor a rank spends time on imports, no library's threads exist where ranks are
forked, and no test starts in a process in which another has initialised CUDA. Tests marked
``alone`` (they measure time, or count what a machine or a GPU has) run afterwards, one file at a
time. On GPUs the longest files are divided, and what is marked ``uncrowded`` (kernels of NCCL wait
for each other on all GPUs, which processes of many tests seldom let them have at once) runs behind
the rest, a few jobs at once, with the C++ tests on a GPU; those with Alone in their name run alone.

Writes the output of every file to REPORTS/logs and the results to REPORTS/pytest.xml (JUnit). The
exit code is 1 if a test failed, if a file could not be collected, or if nothing ran.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("test/python", "test/fault", "test/model")
# What tests and ranks would import again and again; none of it starts a thread or touches a GPU.
IMPORTED_ONCE = (
    *("pytest", "hypothesis", "numpy", "torch.distributed.tensor.parallel", "torch._dynamo"),
    *("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining"),
    *("torch.distributed._symmetric_memory", "torch_symm", "torch_symm._C", "torch_symm._engines"),
)
# What ranks that run kernels would import, where Triton is there. Not torch_symm.triton, which
# reads the environment.
IMPORTED_WITH_TRITON = ("triton.experimental.gluon",)
# Started first where no earlier run says how long each takes.
LONG_FILES = {
    *("test_collectives.py", "test_determinism.py", "test_exit.py", "test_footprint.py"),
    *("test_hosts.py", "test_rejoin.py", "test_same_bits.py", "test_memory_after_failure.py"),
    *("test_late_ranks.py", "test_symmetric_import.py", "test_models.py", "test_ranks.py"),
    *("test_kernel_codegen.py", "test_race_check.py", "test_bench_faults.py"),
    *("test_protocol_models.py", "test_faults.py"),
}
# The same where ranks share a GPU, on which each wait of one for another takes milliseconds: the
# longest first.
LONG_FILES_ON_GPUS = (
    *("test_exit.py", "test_ccl.py", "test_bench_contenders.py", "test_cuda_hosts.py"),
    *("test_models.py", "test_symm_mem_ops.py", "test_tile_reduce.py", "test_cuda_failure.py"),
    *("test_rejoin.py", "test_fused_values.py", "test_all_to_all_vdev.py", "test_determinism.py"),
    *("test_groups.py", "test_sparse.py", "test_symm_mem_fused_ops.py", "test_collectives.py"),
    *("test_contiguous_view.py", "test_programs.py", "test_placement.py"),
    *("test_symmetric_groups.py", "test_bad_input.py", "test_symmetric_memory.py"),
    *("test_same_bits.py", "test_cuda_determinism.py", "test_symmetric_signals.py"),
    *("test_flight_record.py", "test_kernel_failures.py", "test_bench.py"),
)
# Files of which each part is a job there: else the last job would end long after the others.
PARTS_ON_GPUS = {
    **{"test_memory_providers.py": 3, "test_models.py": 2, "test_ccl.py": 3},
    **{"test_cuda_hosts.py": 3, "test_rejoin.py": 2, "test_fused_values.py": 2},
    **{"test_bench_contenders.py": 3, "test_exit.py": 2, "test_all_to_all_vdev.py": 2},
}
GPU_TESTS = "test/gpu"  # the names of its jobs begin so
SUPPORT = ROOT / "test/python/support"
GPU_SHARDS = 3  # processes of the C++ tests: making groups is most of their time
UNCROWDED_JOBS = 5  # at once
NOTHING_COLLECTED = 5  # pytest's exit code


@dataclass
class Job:
    """One file of tests, or the C++ tests, and how it went."""

    name: str
    marker: str = ""  # pytest's -m
    file: str = ""  # that pytest is given
    command: list[str] | None = None  # instead of pytest
    env: dict[str, str] = field(default_factory=dict)  # beside what is set
    started: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of it and of the processes that it waited for
    status: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    suite: ElementTree.Element | None = None

    def path(self, reports: Path, ending: str) -> Path:
        stem = self.name.removeprefix("test/").replace("/", ".").replace(" ", "_")
        return reports / "logs" / f"{stem}{ending}"

    @property
    def failed(self) -> bool:
        return self.status not in (0, NOTHING_COLLECTED) or self.counts.get("failed", 0) > 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=FOLDERS, help="files and folders of tests")
    parser.add_argument("-m", "--marker", default="", help="pytest's marker expression")
    parser.add_argument(
        "--jobs", type=int, help="files at once; else as many as cores, on GPUs 5 for 8 of them"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="sets SYMM_TEST_DEVICE")
    parser.add_argument("--gpu-tests", type=Path, help="the C++ tests on a GPU, which run too")
    parser.add_argument("--reports", type=Path, default=ROOT / "build/reports")
    arguments = parser.parse_args()
    cores = os.cpu_count()
    # On GPUs ranks take turns, and most of the time is waiting.
    arguments.jobs = arguments.jobs or (-(-cores * 5 // 8) if arguments.device == "cuda" else cores)
    return arguments


def test_files(paths: list[str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [file.resolve().relative_to(ROOT) for file in files]


def both(*markers: str) -> str:
    return " and ".join(f"({marker})" for marker in markers if marker)


def gpu_job(arguments: argparse.Namespace, name: str, tests: str, **env: str) -> Job:
    job = Job(name, env=env)
    program = str(arguments.gpu_tests.resolve())
    report = f"--gtest_output=xml:{job.path(arguments.reports, '.xml')}"
    job.command = [program, "--gtest_brief=1", f"--gtest_filter={tests}", report]
    return job


def plan(arguments: argparse.Namespace) -> tuple[list[Job], list[Job], list[Job]]:
    """What may run beside many others, beside few, both longest first; and alone, in order."""
    together, uncrowded, alone = [], [], []
    for file in test_files(arguments.paths):
        text = (ROOT / file).read_text()
        if arguments.marker == "long" and "mark.long" not in text:
            continue
        if "mark.alone" in text:
            marker = both("alone", arguments.marker)
            alone.append(Job(f"{file} alone", marker, str(file)))
        if arguments.device != "cuda" or "mark.uncrowded" not in text:
            together += parts_of(file, arguments, "")
            continue
        together += parts_of(file, arguments, "not uncrowded")
        uncrowded += parts_of(file, arguments, "uncrowded")
    if arguments.gpu_tests:
        for shard in range(GPU_SHARDS):
            name = f"{GPU_TESTS} {shard + 1} of {GPU_SHARDS}"
            share = {"GTEST_SHARD_INDEX": str(shard), "GTEST_TOTAL_SHARDS": str(GPU_SHARDS)}
            uncrowded.append(gpu_job(arguments, name, "-*Alone*", **share))
        alone.append(gpu_job(arguments, f"{GPU_TESTS} alone", "*Alone*"))
    for jobs in (together, uncrowded):
        jobs.sort(key=lambda job: -expected_seconds(job, arguments))
    return together, uncrowded, alone


def parts_of(file: Path, arguments: argparse.Namespace, crowd: str) -> list[Job]:
    marker = both("not alone", arguments.marker, crowd)
    name = f"{file} uncrowded" if crowd == "uncrowded" else str(file)
    parts = PARTS_ON_GPUS.get(file.name, 1) if arguments.device == "cuda" else 1
    if parts == 1:
        return [Job(name, marker, str(file))]
    return [
        Job(f"{name} {n + 1} of {parts}", marker, str(file), env={"SYMM_TEST_PART": f"{n}/{parts}"})
        for n in range(parts)
    ]


def expected_seconds(job: Job, arguments: argparse.Namespace) -> float:
    """What the job took last time; without that, those known to be long first."""
    report = job.path(arguments.reports, ".xml")
    if report.exists():
        root = ElementTree.parse(report).getroot()
        return sum(float(suite.get("time", 0)) for suite in root.iter("testsuite"))
    if job.command:
        return 100.0
    size = (ROOT / job.file).stat().st_size / 1e4  # tens of KB at most
    name = Path(job.file).name
    if arguments.device != "cuda":
        return size + 100 * (name in LONG_FILES)
    if name not in LONG_FILES_ON_GPUS:
        return size
    return 100.0 + len(LONG_FILES_ON_GPUS) - LONG_FILES_ON_GPUS.index(name)


def spread_over_gpus(jobs: list[Job]) -> None:
    """Counts the GPUs for all jobs; each begins with another, as most ranks are on the first."""
    sys.path.insert(0, str(SUPPORT))
    machine = importlib.import_module("machine")
    count = machine.count_gpus()
    os.environ[machine.COUNTED] = str(count)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for index, job in enumerate(jobs):
        first = index % len(gpus)
        job.env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first:] + gpus[:first])


def run_file(job: Job, reports: Path) -> int:
    """The life of a fork: pytest on one file, its output in the job's log."""
    log = os.open(job.path(reports, ".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    xml = job.path(reports, ".xml")
    xml.unlink(missing_ok=True)
    os.environ.update(job.env)
    if job.command:
        return subprocess.run(job.command).returncode
    pytest = importlib.import_module("pytest")
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={xml}"]
    options += ["-m", job.marker] if job.marker else []
    return pytest.main([*options, job.file])


def end_fork(code: int) -> None:
    """Ends a fork with all that is registered for the end of a process, ranks that are kept among
    it. To take the interpreter apart would take longer than many a file's tests."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def read_report(job: Job, reports: Path) -> None:
    xml = job.path(reports, ".xml")
    job.counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    if not xml.exists():
        return
    root = ElementTree.parse(xml).getroot()
    job.suite = root if root.tag == "testsuite" or job.command else root.find("testsuite")
    for case in job.suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            job.counts["failed"] += 1
        elif case.find("skipped") is not None:
            job.counts["skipped"] += 1
        else:
            job.counts["passed"] += 1


def show(job: Job, done: int, of: int, reports: Path) -> None:
    counts = ", ".join(f"{number} {what}" for what, number in job.counts.items() if number)
    print(
        f"[{done}/{of}] {job.seconds:5.1f} s, CPU {job.cpu:5.1f} s  {job.name}: "
        f"{counts or 'nothing to run'}",
        flush=True,
    )
    if job.failed:
        print(job.path(reports, ".log").read_text(errors="replace"), flush=True)


def run_all(jobs: list[Job], at_once: int, done: int, of: int, reports: Path) -> None:
    waiting, running = collections.deque(jobs), {}
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.popleft()
            job.started = time.monotonic()
            pid = os.fork()
            if pid == 0:
                end_fork(run_file(job, reports))
            running[pid] = job
        pid, status, usage = os.wait3(0)
        if job := running.pop(pid, None):
            job.seconds = time.monotonic() - job.started
            job.cpu = usage.ru_utime + usage.ru_stime
            job.status = os.waitstatus_to_exitcode(status)
            read_report(job, reports)
            done += 1
            show(job, done, of, reports)


def write_report(jobs: list[Job], path: Path) -> None:
    whole = ElementTree.Element("testsuites")
    whole.extend(job.suite for job in jobs if job.suite is not None)
    ElementTree.ElementTree(whole).write(path, encoding="utf-8", xml_declaration=True)


def reasons_of_skips(jobs: list[Job]) -> collections.Counter:
    return collections.Counter(
        skipped.get("message", "")
        for job in jobs
        if job.suite is not None
        for skipped in job.suite.iter("skipped")
    )


def main() -> int:
    arguments = parse_arguments()
    os.chdir(ROOT)
    if arguments.device:
        os.environ["SYMM_TEST_DEVICE"] = arguments.device
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if os.environ.get("SYMM_TEST_DEVICE", "cpu") == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # torch._dynamo imports triton
    (arguments.reports / "logs").mkdir(parents=True, exist_ok=True)
    together, uncrowded, alone = plan(arguments)
    jobs, started = together + uncrowded + alone, time.monotonic()
    if arguments.device == "cuda":
        spread_over_gpus(together + uncrowded)
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    for module in IMPORTED_WITH_TRITON:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # or each fork would look through, and copy, what is imported here

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run_all(together, arguments.jobs, 0, len(jobs), arguments.reports)
    done = len(together)
    run_all(uncrowded, UNCROWDED_JOBS, done, len(jobs), arguments.reports)
    run_all(alone, 1, done + len(uncrowded), len(jobs), arguments.reports)

    write_report(jobs, arguments.reports / "pytest.xml")
    for reason, number in reasons_of_skips(jobs).most_common():
        print(f"skipped {number}: {reason}")
    total = collections.Counter()
    for job in jobs:
        total.update(job.counts)
    failed = [job.name for job in jobs if job.failed]
    for name in failed:
        print(f"FAILED {name}")
    print(
        f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped in "
        f"{time.monotonic() - started:.0f} s, {arguments.jobs} files at once, "
        f"{sum(job.cpu for job in jobs):.0f} s of CPU"
    )
    return 1 if failed or not total["passed"] else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # else libraries that were imported for the forks report here what they leak
