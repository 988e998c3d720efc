#!/usr/bin/env python3
"""Checks the assembly of the HIP kernels, which no GPU here can run.

check_assembly.py FOLDER TABLE          checks FOLDER/*.gfx*.s against TABLE
check_assembly.py FOLDER TABLE --write  writes TABLE anew
check_assembly.py FOLDER --break        breaks the code of some sources in several ways; exits with
                                        0 where each is found in every kernel that it concerns

TABLE has a row for each kernel: registers, bytes of a block's shared memory, waves that a SIMD
holds, and `own`, the stores and atomics that neither have the system's scope nor stream payload.
Against it no kernel may lose a wave, gain more registers or shared memory than MARGINS says, or, on
gfx942, which shows the scope of a store, gain one that only this GPU is sure to see.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# What a release and an acquire of the system's scope look like, in this order.
RELEASE = {
    "gfx90a": ["buffer_wbl2", "s_waitcnt vmcnt(0)"],
    "gfx942": ["buffer_wbl2 sc0 sc1", "s_waitcnt vmcnt(0)"],
    # It has no cache to write back; a wait may serve several fences where no store stands between.
    "gfx1100": ["s_waitcnt_vscnt null, 0x0"],
}
# The wait for the flag itself stands before the comparison that led here.
ACQUIRE = {
    "gfx90a": ["buffer_invl2", "buffer_wbinvl1_vol"],
    "gfx942": ["buffer_inv sc0 sc1"],
    "gfx1100": ["buffer_gl1_inv", "buffer_gl0_inv"],
}
# Bits of an access to a flag; relaxed stores of gfx90a and gfx1100 are plain (the memory is
# uncached).
FLAG_LOAD = {"gfx90a": " glc", "gfx942": " sc0 sc1", "gfx1100": " glc"}
FLAG_STORE = {"gfx90a": "", "gfx942": " sc0 sc1", "gfx1100": ""}

# Bits of what streams payload: loads, stores.
PAYLOAD_LOAD = {"gfx90a": " glc slc", "gfx942": " nt", "gfx1100": " slc dlc"}
PAYLOAD_STORE = {"gfx90a": " glc slc", "gfx942": " nt", "gfx1100": " glc slc dlc"}

LABEL = re.compile(r"^(_Z\w+):")
FIGURE = re.compile(
    r"^; (NumVgprs|TotalNumVgprs|NumSgprs|ScratchSize|Occupancy|LDSByteSize): (\d+)"
)
FLAT = re.compile(r"flat_(load|store|atomic)")
WIDE = r"(dwordx4|b128) "
STORE = re.compile(r"(global|flat|buffer)_(store|atomic)")
ACCESS = re.compile(r"(global|flat|buffer|scratch)_")
# Kernels that move no payload by themselves.
NO_PAYLOAD = re.compile(r"signal_kernel|barrier_kernel|plan_rows")
# Kernels between others of their stream that meet the peers: they signal nobody.
SILENT = re.compile(r"matrix_sum_kernel|fold_kernel|row_norm_kernel")
# Kernels whose data brings its own flag, or that are silent: nothing is released or acquired.
UNORDERED = re.compile(r"wire_kernel|matrix_sum_kernel|fold_kernel|row_norm_kernel")
# Those that release nothing, among them the one of messages that all are in boxes.
UNRELEASED = re.compile(
    r"wire_kernel|matrix_sum_kernel|fold_kernel|row_norm_kernel"
    r"|transfer_kernel.*WayINS_6LLTileELb0ELb1ELb0EE"
)
# Those that look at no flag: of one rank's memory alone.
UNFLAGGED = re.compile(r"fold_kernel|row_norm_kernel")
# What kernels call that moves none either.
REPORT = re.compile(r"fail_group")
COLUMNS = ["gpu", "kernel", "vgprs", "sgprs", "lds", "occupancy", "own"]
# By how much a figure may grow before somebody must look: one step in which registers are given
# out on gfx9, and room for one more word for each thread of a wave.
MARGINS = {"vgprs": 8, "sgprs": 16, "lds": 256}


@dataclass
class Function:
    file: str
    gpu: str
    name: str
    is_kernel: bool = False
    code: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)


def instructions_of(line: str) -> list[str]:
    """The line; a wait for several counters as one wait for each."""
    if not line.startswith("s_waitcnt "):
        return [line]
    return [f"s_waitcnt {counter}" for counter in line.split()[1:]]


def functions_of(path: Path) -> list[Function]:
    text = path.read_text()
    kernels = set(re.findall(r"\.amdhsa_kernel (\w+)", text))
    gpu = path.name.split(".")[-2]
    functions: list[Function] = []
    for line in text.splitlines():
        if match := LABEL.match(line):
            name = match[1]
            functions.append(Function(path.name.split(".")[0], gpu, name, name in kernels))
        elif functions and (match := FIGURE.match(line)):
            functions[-1].figures[match[1]] = int(match[2])
        elif functions and line.startswith("\t") and not line.startswith(("\t.", "\t;")):
            functions[-1].code += instructions_of(line.split(";")[0].strip())
    return [function for function in functions if function.figures]


def has_sequence(code: list[str], wanted: list[str]) -> bool:
    """Whether the instructions stand one after the other, with no access to memory between."""
    for start, line in enumerate(code):
        if line != wanted[0]:
            continue
        rest = iter(wanted[1:])
        needed = next(rest, None)
        for other in code[start + 1 :]:
            if needed is None:
                return True
            if other == needed:
                needed = next(rest, None)
            elif ACCESS.match(other):
                break
        if needed is None:
            return True
    return False


def unwaited_stores(code: list[str]) -> list[str]:
    """Stores and atomics that a buffer_wbl2 before them may still be writing back behind."""
    found = []
    pending = False
    for line in code:
        if line.startswith("buffer_wbl2"):
            pending = True
        elif "vmcnt(0)" in line:
            pending = False
        elif pending and STORE.match(line):
            found.append(line)
    return found


def faults_of(function: Function) -> list[str]:
    gpu, code = function.gpu, function.code
    faults = [f"store behind an unwaited buffer_wbl2: {line}" for line in unwaited_stores(code)]
    faults += [f"flat access: {line}" for line in code if FLAT.match(line)]
    if function.figures.get("ScratchSize", 0) != 0:
        faults.append(f"{function.figures['ScratchSize']} bytes of scratch")
    if not function.is_kernel:
        return faults
    if not UNRELEASED.search(function.name) and not has_sequence(code, RELEASE[gpu]):
        faults.append(f"no release: {', '.join(RELEASE[gpu])}")
    if not UNORDERED.search(function.name) and not has_sequence(code, ACQUIRE[gpu]):
        faults.append(f"no acquire: {', '.join(ACQUIRE[gpu])}")
    if not UNFLAGGED.search(function.name) and not any(
        re.match(r"global_load_\w+ .*" + FLAG_LOAD[gpu] + "$", line) for line in code
    ):
        faults.append(f"no load of a flag with {FLAG_LOAD[gpu].strip()}")
    if not SILENT.search(function.name) and not any(
        re.match(r"global_(store|atomic_cmpswap)\w* .*" + FLAG_STORE[gpu] + "$", line)
        for line in code
    ):
        faults.append(f"no store of a flag with {FLAG_STORE[gpu].strip()}")
    return faults


def payload_faults(functions: list[Function]) -> list[str]:
    """Payload moves by 16 bytes, in the kernel or in what it calls."""
    called = [f for f in functions if not f.is_kernel and not REPORT.search(f.name)]
    faults = []
    for kernel in functions:
        if not kernel.is_kernel or NO_PAYLOAD.search(kernel.name):
            continue
        for what, bits in (("load", PAYLOAD_LOAD), ("store", PAYLOAD_STORE)):
            pattern = re.compile(f"global_{what}_{WIDE}.*{bits[kernel.gpu]}$")
            if not any(pattern.match(line) for f in (kernel, *called) for line in f.code):
                faults.append(f"{place_of(kernel)}: no 16-byte {what} of payload")
    return faults


def place_of(function: Function) -> str:
    return f"{function.file} {function.gpu} {function.name}"


def check_code(files: list[Path], edit=lambda code: code) -> tuple[list[str], list[Function]]:
    faults, kernels = [], []
    for path in files:
        functions = functions_of(path)
        for function in functions:
            function.code = edit(function.code)
            faults += [f"{place_of(function)}: {fault}" for fault in faults_of(function)]
        faults += payload_faults(functions)
        kernels += [function for function in functions if function.is_kernel]
    return faults, kernels


def own_stores(kernel: Function) -> int:
    """Stores and atomics of gfx942 for this GPU alone: neither streamed nor of the system's scope;
    0 elsewhere, where a store does not show its scope."""
    if kernel.gpu != "gfx942":
        return 0
    return sum(
        bool(STORE.match(line)) and not line.endswith((" sc0 sc1", " sc1", " nt"))
        for line in kernel.code
    )


def row_of(kernel: Function) -> dict[str, str]:
    figures = kernel.figures
    values = [
        figures.get("TotalNumVgprs", figures["NumVgprs"]),
        *[figures[name] for name in ("NumSgprs", "LDSByteSize", "Occupancy")],
        own_stores(kernel),
    ]
    return dict(zip(COLUMNS, [kernel.gpu, kernel.name, *map(str, values)], strict=True))


def worse(row: dict[str, str], before: dict[str, str]) -> list[str]:
    """The columns in which `row` is worse than `before` by more than it may be."""
    grown = {name: int(row[name]) - int(before[name]) for name in COLUMNS[2:]}
    names = [name for name, margin in MARGINS.items() if grown[name] > margin]
    if grown["occupancy"] < 0:
        names.append("occupancy")
    if grown["own"] > 0:
        names.append("own")
    return names


def compare(kernels: list[Function], table: Path) -> list[str]:
    """What got worse against the table; both must list the same kernels."""
    with table.open() as file:
        known = {(row["gpu"], row["kernel"]): row for row in csv.DictReader(file)}
    faults = []
    for row in map(row_of, kernels):
        before = known.pop((row["gpu"], row["kernel"]), None)
        place = f"{row['gpu']} {row['kernel']}"
        if before is None:
            faults.append(f"{place}: not in {table.name}; write it anew with --write")
            continue
        faults += [
            f"{place}: {name} {row[name]}, was {before[name]}" for name in worse(row, before)
        ]
    # Of a GPU for which only some sources were compiled, nobody can say what is gone.
    files: dict[str, set[str]] = {}
    for kernel in kernels:
        files.setdefault(kernel.gpu, set()).add(kernel.file)
    whole = {gpu for gpu, names in files.items() if len(names) == max(map(len, files.values()))}
    faults += [f"{gpu} {name}: gone, but in {table.name}" for gpu, name in known if gpu in whole]
    return faults


def without_waits(code: list[str]) -> list[str]:
    """The code as a compiler that forgets the wait behind buffer_wbl2 would write it."""
    broken: list[str] = []
    dropping = False
    for line in code:
        if line.startswith("buffer_wbl2"):
            dropping = True
        elif dropping and line == "s_waitcnt vmcnt(0)":
            continue
        elif ACCESS.match(line):
            dropping = False
        broken.append(line)
    return broken


def without(pattern: str):
    return lambda code: [line for line in code if not re.match(pattern, line)]


def replacing(pattern: str, text: str):
    return lambda code: [re.sub(pattern, text, line) for line in code]


# Sources with every kind of kernel, which are broken.
BROKEN_SOURCES = {"signal", "move", "transfer", "reduce_float16"}
# Ways to break code, the GPUs whose code has what is broken, and by what it must be found.
BREAKS = [
    ("no wait behind buffer_wbl2", "gfx90a gfx942", without_waits, "no release"),
    ("no write-back", "gfx90a gfx942", without("buffer_wbl2"), "no release"),
    ("no wait for stores", "gfx1100", without("s_waitcnt_vscnt"), "no release"),
    ("no invalidation", "gfx90a gfx942 gfx1100", without("buffer_(inv|wbinv|gl)"), "no acquire"),
    ("the GPU's own scope", "gfx942", replacing(" sc0 sc1$", " sc1"), "no release"),
    ("flags loaded from a cache", "gfx90a gfx1100", replacing(" glc$", ""), "no load of a flag"),
    ("flat accesses", "gfx90a gfx942 gfx1100", replacing("^global_", "flat_"), "flat access"),
    (
        "payload by 4 bytes",
        "gfx90a gfx942 gfx1100",
        replacing("(global_(load|store)_)(dwordx4|b128)", r"\1dword"),
        "no 16-byte",
    ),
]


def find_breaks(files: list[Path]) -> bool:
    """Whether each of BREAKS is found in every kernel that it concerns."""
    found_all = True
    for name, gpus, edit, fault in BREAKS:
        chosen = [
            path
            for path in files
            if path.name.split(".")[0] in BROKEN_SOURCES and path.name.split(".")[1] in gpus.split()
        ]
        faults, kernels = check_code(chosen, edit)
        exempt = [NO_PAYLOAD] * (fault == "no 16-byte")
        exempt += [UNRELEASED] * (fault == "no release") + [UNORDERED] * (fault == "no acquire")
        exempt += [UNFLAGGED] * (fault == "no load of a flag")
        concerned = {
            place_of(kernel)
            for kernel in kernels
            if not any(pattern.search(kernel.name) for pattern in exempt)
        }
        found = {line.split(": ")[0] for line in faults if fault in line} & concerned
        print(f"hip: {name}: found in {len(found)} of {len(concerned)} kernels broken like that")
        found_all = found_all and len(found) > 0 and found == concerned
    return found_all


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--break", action="store_true", dest="breaks")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.gfx*.s"))
    if not files:
        sys.exit(f"{options.folder} holds no assembly")
    if options.breaks:
        return 0 if find_breaks(files) else 1
    faults, kernels = check_code(files)
    if options.write:
        with options.table.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(map(row_of, kernels), key=lambda r: (r["gpu"], r["kernel"])))
    elif options.table is not None:
        faults += compare(kernels, options.table)
    for fault in faults:
        print(f"hip: {fault}", file=sys.stderr)
    print(f"hip: {len(kernels)} kernels in {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
