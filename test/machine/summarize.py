"""Writes what cuda_suite.sh (or hip_suite.sh) has found so far: the machine, and for each step its
exit status, its seconds and its counts.

    python3 test/machine/summarize.py <summary.json> <steps> <logs folder> [--print]

A line of <steps> is "name status seconds limit"; status 124 and 137 stand for a step that its time
limit ended, "not_run" for one that there was no time (or no program) for.
"""

import json
import os
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "support"))

from record_file import write_records

_MACHINE = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
found = {"torch": torch.__version__, "cuda": torch.version.cuda,
         "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
if torch.version.hip:
    found |= {"hip": torch.version.hip,
              "gpus": [f"{p.name}, {p.gcnArchName}, {p.total_memory >> 20} MiB" for p in gpus]}
print(json.dumps(found))
"""


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def machine() -> dict:
    gpus = _output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    driver = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if not driver:
        driver = _text_of(Path("/sys/module/amdgpu/version"))
    found = {"gpus": gpus.splitlines(), "driver": driver.partition("\n")[0]}
    found |= {"cores": os.cpu_count(), "kernel": platform.release()}
    found |= {"python": platform.python_version()}
    text = _output_of(sys.executable, "-c", _MACHINE)
    return found | (json.loads(text) if text.startswith("{") else {})


def _counts_of_junit(path: Path) -> dict:
    suites = tree.parse(path).getroot().iter("testsuite")
    total = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for key in total:
            total[key] += int(suite.get(key, 0))
    return total


def _counts_of_gtest(path: Path) -> dict:
    report = json.loads(path.read_text())
    return {key: report.get(key, 0) for key in ("tests", "failures", "errors", "disabled")}


def counts_of(step: str, logs: Path) -> dict:
    """What the step's tool has counted, from its own report or the last line of its log."""
    for path, read in (
        (logs / f"{step}.xml", _counts_of_junit),
        (logs / f"{step}.json", _counts_of_gtest),
    ):
        if path.exists():
            return read(path)
    log = logs / f"{step}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    told = [line for line in lines if re.search(r"passed|failed|ERROR SUMMARY|pass ", line)]
    return {"summary": told[-1].strip("= ")[:300]} if told else {}


def main() -> None:
    path, steps, logs = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    summary = json.loads(path.read_text()) if path.exists() else {}
    if "machine" not in summary:
        command = os.environ.get("SUITE", "test/machine/cuda_suite.sh")
        summary = {"command": command, "machine": machine(), "steps": {}}
    for line in steps.read_text().splitlines():
        name, status, seconds, limit = line.split()
        row = {"status": int(status) if status.lstrip("-").isdigit() else status}
        row |= {"seconds": int(seconds), "limit": int(limit), **counts_of(name, logs)}
        summary["steps"][name] = row
    write_records(path, summary)
    if "--print" in sys.argv:
        print(path.read_text())


if __name__ == "__main__":
    main()
