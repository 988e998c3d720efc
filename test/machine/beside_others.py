#!/usr/bin/env python3
"""What busy programs beside cost collectives on the CPU: the bench with as many of them.

    python test/machine/beside_others.py --json beside.json

A busy program counts in Python and never waits. Rows have the bench's times, in microseconds, in
place where there is such a form. The package measured is that of the Python that runs this; rows of
an earlier version are kept under their label, so that one file can hold two.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from torch_symm.tools.machine import describe_machine
from torch_symm.tools.record_file import write_records

COLLECTIVES = ["all_reduce", "broadcast", "all_gather", "sendrecv"]


def bench(ranks: int, arguments: list[str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        command = [sys.executable, "-m", "torch_symm.bench", "-n", str(ranks), "--json", str(path)]
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())["rows"]


def figures(row: dict) -> dict:
    result = row["results"][0]
    timing = result["in_place"] or result["out_of_place"]
    return {
        "collective": row["collective"],
        "bytes": row["size"],
        "us": round(timing["time_us"], 1),
        "wrong": timing["wrong"],
    }


def measured(ranks: int, busy: int, arguments: list[str]) -> list[dict]:
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        return [{"ranks": ranks, "busy": busy} | figures(row) for row in bench(ranks, arguments)]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--busy", default="0,1,2", help="programs beside")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--label", default="now")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    arguments = ["-b", "4K", "-e", "4M", "--factor", "32", "--budget-ms", "60"]
    for name in COLLECTIVES:
        arguments += ["-c", name]
    document = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
    document["machine"] = describe_machine(["symm"], 0, "cpu")
    document["bench"] = " ".join(arguments)
    rows = [row for row in document["rows"] if row["label"] != options.label]
    for turn in range(options.turns):
        for ranks in map(int, options.ranks.split(",")):
            for busy in map(int, options.busy.split(",")):
                found = measured(ranks, busy, arguments)
                rows += [{"label": options.label, "turn": turn} | row for row in found]
                print(options.label, turn, ranks, busy, [row["us"] for row in found], flush=True)
    write_records(options.json, document | {"rows": rows})


if __name__ == "__main__":
    main()
