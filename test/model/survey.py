"""Searches the models of every protocol, whole and with each of its orders and waits broken.

python test/model/survey.py --json docs/evidence/model_check.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from checker import Checker, missing_tools
from families import Family, families
from pipelines import parse_calls
from program import Mutation, Program
from sites import NOT_NEEDED

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "support"))

from record_file import write_records


@dataclass
class Survey:
    """What was found of one protocol; `problems` is empty where all is as it should be."""

    protocol: str
    models: list[dict[str, object]] = field(default_factory=list)
    mutations: dict[str, str] = field(default_factory=dict)
    planted: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def survey(family: Family, checker: Checker) -> Survey:
    """Searches all models of the family, all its mutations and planted faults."""
    start = time.monotonic()
    found = Survey(family.name)
    for model in family.models:
        verdict = checker.check(model)
        row = {"model": model.name, "threads": len(model.threads), "states": verdict.states}
        row |= {"transitions": verdict.transitions, "seconds": round(verdict.seconds, 2)}
        row |= {"waits": "oldest message" if model.first_choice_only else "every message"}
        found.models.append(row)
        if verdict.fault:
            found.problems.append(f"{model.name}: {verdict.fault}")
    for mutation in dict.fromkeys(m for model in family.models for m in model.mutations()):
        fault = first_fault(family.models, mutation, checker)
        found.mutations[str(mutation)] = fault or "none: " + NOT_NEEDED.get(str(mutation), "")
        if bool(fault) == (str(mutation) in NOT_NEEDED):
            found.problems.append(f"{mutation}: {fault or 'not found'}")
    for model in family.planted:
        fault = checker.check(model).fault
        found.planted[model.name] = fault
        if fault in ("", "bound"):
            found.problems.append(f"{model.name}: {fault or 'not found'}")
    found.seconds = round(time.monotonic() - start, 1)
    return found


def first_fault(models: list[Program], mutation: Mutation, checker: Checker) -> str:
    """The fault in the first model that the mutation breaks; empty where it breaks none."""
    for model in models:
        if mutation in model.mutations():
            fault = checker.check(model.broken(mutation)).fault
            if fault and fault != "bound":
                return f"{fault} in {model.name}"
    return ""


def main() -> None:
    """Prints a line a protocol and writes all that was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    arguments = parser.parse_args()
    if missing_tools():
        sys.exit(f"needed and not installed: {', '.join(missing_tools())}")
    surveys = []
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(Path(folder))
        for family in families(parse_calls(checker.trace())):
            found = survey(family, checker)
            surveys.append(found)
            states = sum(int(str(row["states"])) for row in found.models)
            line = f"{found.protocol}: {len(found.models)} models, {states} states"
            line += f", {len(found.mutations)} mutations, {len(found.planted)} planted faults"
            print(f"{line}, {found.seconds} s", *found.problems, sep="\n  ", flush=True)
    if arguments.json:
        version = subprocess.run(["spin", "-V"], capture_output=True, text=True).stdout.strip()
        report = {
            "command": "python test/model/survey.py --json docs/evidence/model_check.json",
            "checker": version,
            "seconds": round(sum(found.seconds for found in surveys), 1),
            "protocols": [asdict(found) for found in surveys],
        }
        write_records(arguments.json, report)
    sys.exit(any(found.problems for found in surveys))


if __name__ == "__main__":
    main()
