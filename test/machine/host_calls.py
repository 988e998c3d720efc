"""By which calls a device library and its tests reach the GPU, and what the tests found with them.

    python3 test/machine/host_calls.py <result.json> <libsymm_cuda.so> <symm_gpu_tests>
        [--expected "HIP on NVIDIA"] [--suite <folder of cuda_suite.sh's results>]

Fails, and writes why, unless both programs say that they have the expected calls. With HIP's calls
there must be no name of an entry for multicast objects either.
"""

import argparse
import hashlib
import json
import re
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "support"))

from record_file import write_records

_MARK = rb"symm host calls: ([\w ]+)"


def examined(path: Path) -> dict:
    """What a program's bytes tell."""
    content = path.read_bytes()
    return {
        "file": path.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "host_calls": sorted({found.decode() for found in re.findall(_MARK, content)}),
        "multicast_entries": sorted(
            {found.decode() for found in re.findall(rb"cuMulticast\w+", content)}
        ),
    }


def faults_of(program: dict, expected: str) -> list[str]:
    faults = []
    if program["host_calls"] != [expected]:
        faults.append(
            f"{program['file']}: expected calls by {expected}, got {program['host_calls']}"
        )
    if "HIP" in expected and program["multicast_entries"]:
        faults.append(f"{program['file']}: names {program['multicast_entries']}")
    return faults


def told_by_tests(suite: Path) -> list[str]:
    """The host calls that the tests themselves have recorded."""
    archive = suite / "logs.tar.gz"
    if not archive.exists():
        return []
    with tarfile.open(archive) as logs:
        if "logs/gtest.json" not in logs.getnames():
            return []
        report = json.load(logs.extractfile("logs/gtest.json"))
    tests = [test for group in report["testsuites"] for test in group["testsuite"]]
    return sorted({test["host_calls"] for test in tests if "host_calls" in test})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("tests", type=Path)
    parser.add_argument("--expected", default="HIP on NVIDIA")
    parser.add_argument("--suite", type=Path)
    options = parser.parse_args()

    programs = [examined(path) for path in (options.library, options.tests)]
    result = {"command": "test/machine/hip_on_nvidia.sh", "programs": programs}
    if options.suite:
        result["told_by_tests"] = told_by_tests(options.suite)
        summary = options.suite / "summary.json"
        if summary.exists():
            result |= {
                key: value
                for key, value in json.loads(summary.read_text()).items()
                if key != "command"
            }
    faults = [fault for program in programs for fault in faults_of(program, options.expected)]
    result["faults_of_programs"] = faults
    write_records(options.result, result)
    for fault in faults:
        print(f"host_calls: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
