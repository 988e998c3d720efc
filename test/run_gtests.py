#!/usr/bin/env python3
"""Runs GoogleTest programs in a few processes each and writes one JUnit report.

    python test/run_gtests.py build/asan/test/symm_unit_tests ... --jobs 2 --report asan.xml

Where a process costs much to start, as with a sanitizer, this takes half the time of a process for
each test, as ctest has it. A process that ends without a report has crashed, or has been stopped at
its time limit: the test that it was in is a failure. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SHARDS = 8  # of a program: they end at other times, so more than the processes at once


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=400, help="seconds of a process")
    return parser.parse_args()


def crash(name: str, output: str, why: str) -> list[ElementTree.Element]:
    """The report of a process that has left none: what had passed, and where it ended."""
    suite = ElementTree.Element("testsuite", name=name)
    passed = re.findall(r"^\[       OK \] (\S+)", output, re.M)
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    for test in passed:
        ElementTree.SubElement(suite, "testcase", classname=name, name=test)
    last = begun[-1] if begun else "before its first test"
    case = ElementTree.SubElement(suite, "testcase", classname=name, name=last)
    ElementTree.SubElement(case, "failure", message=why)
    suite.set("tests", str(len(passed) + 1))
    suite.set("failures", "1")
    return [suite]


def run_shard(
    program: Path, shard: int, limit: float, folder: Path
) -> tuple[list[ElementTree.Element], bool]:
    """The test suites that the process has run, and whether all is well."""
    name = f"{program.name} {shard + 1} of {SHARDS}"
    report = folder / f"{program.name}.{shard}.xml"
    env = {"GTEST_SHARD_INDEX": str(shard), "GTEST_TOTAL_SHARDS": str(SHARDS)}
    start = time.monotonic()
    try:
        done = subprocess.run(
            [program.resolve(), f"--gtest_output=xml:{report}"],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
        output, status = done.stdout, f"ended with exit code {done.returncode}"
        well = done.returncode == 0 and report.exists()
    except subprocess.TimeoutExpired as stopped:
        output, well = (stopped.stdout or b"").decode(errors="replace"), False
        status = f"was stopped after {limit:.0f} s"
    if report.exists():
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    else:
        suites = crash(program.name, output, f"the process {status}")
    tests = sum(int(suite.get("tests")) for suite in suites)
    print(f"{time.monotonic() - start:6.1f} s  {name}: {tests} tests, {status}", flush=True)
    if not well:
        print(output, flush=True)
    return suites, well


def main() -> int:
    arguments = parse_arguments()
    whole, all_well = ElementTree.Element("testsuites"), True
    shards = [(program, shard) for shard in range(SHARDS) for program in arguments.programs]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        run = [
            pool.submit(run_shard, program, shard, arguments.limit, Path(folder))
            for program, shard in shards
        ]
        for suites, well in (one.result() for one in run):
            whole.extend(suites)
            all_well = all_well and well
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(whole).write(arguments.report, encoding="utf-8", xml_declaration=True)
    return 0 if all_well and len(whole) else 1


if __name__ == "__main__":
    sys.exit(main())
