"""The layout rules of the project: who may include what, and that every header stands alone."""

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["kernels", "symm_mem", "backend", "python_registration"]
# Every folder of sources, from the lowest: one includes only itself and what comes before it.
FOLDERS = [
    *["kernels/core", "kernels/gpu/vendor", "kernels/protocol", "symm_mem/process"],
    *["kernels/plan", "kernels/algorithms", "symm_mem/bootstrap", "kernels/gpu/interface"],
    *["kernels/cpu", "kernels/gpu/launch", "kernels/gpu/device", "symm_mem/device"],
    *["kernels/gpu/wire", "symm_mem/segment", "kernels/gpu/entry"],
    *["backend/engine/record", "symm_mem/group", "backend/engine/group", "backend/engine/host"],
    *["symm_mem/c10d/include/symm", "symm_mem/c10d", "symm_mem/c10d/operators"],
    *["backend/engine/device", "backend/engine", "backend/engine/legs"],
    *["backend/engine/hosts", "backend/include/symm", "backend/streams", "backend/hosts"],
    "backend",
    *["python_registration"],
]
# What is installed: all headers in them, included as <symm/...>.
PUBLIC_ROOTS = ["symm_mem/c10d/include", "backend/include"]
# A folder that has more is more than one concept. A header and its source count once.
MOST_NAMES_IN_A_FOLDER = 20
# What an edit of the planner compiles anew; other headers declare its types.
PLANNER = Path("kernels/plan/plan.hpp")
MOST_SOURCES_OF_THE_PLANNER = 25
SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu", ".inc", ".h"}

TOP_LEVEL = {
    *["CMakeLists.txt", "backend", "symm_mem", "kernels", "test", "python_registration", "docs"],
    *["README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "Makefile"],
}
# What .gitignore names: results of a build, which need not be there.
BUILD_RESULTS = re.compile(r"build.*|dist|demo_out|compile_commands\.json|.*\.egg-info|__pycache__")

TORCH_HEADER = re.compile(r"(torch|c10|c10d|ATen|caffe2|pybind11)/|Python\.h$")
VENDOR_HEADER = re.compile(
    r"(cuda|hip|nv|nccl|rccl|cub|thrust|rocm|hsa|cooperative_groups|cu[A-Z])[\w/.]*"
)
# By these code tells one vendor from the other, in whatever condition they stand; comments may
# name them.
VENDOR_MACRO = re.compile(
    r"^(?:(?!//).)*?\b(__CUDA\w*|CUDA_VERSION|CUDART_VERSION|__NVCC__|__HIP\w*|HIP_VERSION\w*|"
    r"__AMDGCN\w*|__gfx\w*|USE_ROCM|SYMM_GPU_HIP|SYMM_GPU_AMD|SYMM_PTX|SYMM_AMDGCN)\b"
)
# Where they may stand: the headers of the platform and the atomics, and the two halves of the GPU's
# interface with what HIP's half of the driver lacks, and with captures, which CUDA alone is asked.
VENDOR_MACRO_FILES = {
    *["kernels/core/platform.hpp", "kernels/core/atomics.hpp", "kernels/gpu/vendor/gpu_api.hpp"],
    *["kernels/gpu/vendor/gpu_driver_api.hpp", "kernels/gpu/vendor/gpu_driver_hip.hpp"],
    "kernels/gpu/vendor/gpu_capture.hpp",
}
COMMANDS = [
    ROOT / f"python_registration/torch_symm/{name}.py"
    for name in ("audit", "bench", "info", "probe", "run", "tune")
]
INCLUDE = re.compile(r'^\s*#\s*include\s+(<|")([^>"]+)[>"]')

SOURCES = sorted(
    path.relative_to(ROOT)
    for layer in LAYERS
    for path in (ROOT / layer).rglob("*")
    if path.suffix in SUFFIXES
)
HEADERS = [path for path in SOURCES if path.suffix == ".hpp"]


def is_torch_facing(path: Path) -> bool:
    """Whether torch's headers may be used in this file."""
    if path.is_relative_to("backend"):
        return not path.is_relative_to("backend/engine")
    return path.is_relative_to("symm_mem/c10d") or path.is_relative_to("python_registration")


def is_gpu_file(path: Path) -> bool:
    """Whether CUDA's or HIP's headers may be used in this file."""
    return path.is_relative_to("kernels/gpu") or (
        path.is_relative_to("symm_mem/device") and path.name.startswith("gpu")
    )


@functools.cache
def includes(path: Path) -> list[tuple[int, str, str]]:
    """(line number, "<" or '"', name) of each include."""
    found = []
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match[1], match[2]))
    return found


def is_public(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in PUBLIC_ROOTS)


def project_file(quote: str, name: str) -> Path | None:
    """What an include of a header of the project names, from the root; None for other headers."""
    if quote == "<" and name.startswith("symm/"):
        candidates = [Path(root) / name for root in PUBLIC_ROOTS]
        return next((path for path in candidates if (ROOT / path).exists()), candidates[0])
    return Path(name) if quote == '"' and name.split("/")[0] in LAYERS else None


def include_faults(path: Path) -> list[str]:
    faults = []
    for number, quote, name in includes(path):
        place = f"{path}:{number}: includes {name}"
        target = project_file(quote, name)
        if target is not None:
            if not (ROOT / target).exists():
                faults.append(f"{place}, which does not exist")
            elif quote == '"' and is_public(target):
                faults.append(f"{place}, a public header, in quotes")
            if is_public(path) and not is_public(target):
                faults.append(f"{place}, a private header, from a public one")
            elif LAYERS.index(target.parts[0]) > LAYERS.index(path.parts[0]):
                faults.append(f"{place}, which stands to the right of {path.parts[0]}")
            elif FOLDERS.index(str(target.parent)) > FOLDERS.index(str(path.parent)):
                faults.append(f"{place}, which comes after {path.parent} in FOLDERS")
            if is_torch_facing(target) and not is_torch_facing(path):
                faults.append(f"{place}, a torch-facing header, from a torch-free file")
        elif quote == '"':
            faults.append(f"{place} in quotes; only headers of the project, from the root, are")
        elif name.split("/")[0] in LAYERS:
            faults.append(f"{place} in angle brackets")
        elif TORCH_HEADER.match(name) and not is_torch_facing(path):
            faults.append(f"{place}, a header of torch, in a torch-free file")
        elif VENDOR_HEADER.fullmatch(name) and not is_gpu_file(path):
            faults.append(f"{place}, a header of CUDA or HIP")
    return faults


def test_there_are_sources():
    assert len(SOURCES) > 20
    assert {path.parts[0] for path in SOURCES} >= {"kernels", "symm_mem", "backend"}


def test_include_rule():
    faults = [fault for path in SOURCES for fault in include_faults(path)]
    assert not faults, "\n" + "\n".join(faults)


def all_includes(path: Path) -> set[Path]:
    """The headers of the project that a file includes, by itself or by way of others."""
    found: set[Path] = set()
    to_read = [path]
    while to_read:
        for _, quote, name in includes(to_read.pop()):
            target = project_file(quote, name)
            if target is not None and target not in found:
                found.add(target)
                to_read.append(target)
    return found


def test_few_sources_depend_on_the_planner():
    sources = [path for path in SOURCES if path.suffix in {".cpp", ".cu"}]
    dependent = [str(path) for path in sources if PLANNER in all_includes(path)]
    assert 0 < len(dependent) <= MOST_SOURCES_OF_THE_PLANNER, "\n".join(dependent)


def test_every_folder_has_a_place():
    assert {str(path.parent) for path in SOURCES} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_size_of_folder(folder):
    names = {path.stem for path in SOURCES if str(path.parent) == folder}
    assert len(names) <= MOST_NAMES_IN_A_FOLDER, sorted(names)


@pytest.mark.parametrize("root", ["python_registration/torch_symm", "test/python"])
def test_size_of_python_folders(root):
    names = defaultdict(set)
    for path in (ROOT / root).rglob("*.py"):
        names[path.parent].add(path.stem)
    assert len(names) > 5
    assert [str(path) for path in names if len(names[path]) > MOST_NAMES_IN_A_FOLDER] == []


def test_the_core_imports_no_tool():
    """The core needs torch alone; the tools, the commands that start them, and the library for
    kernels are over it."""
    package, faults = ROOT / "python_registration/torch_symm", []
    over_it = r"torch_symm\.tools|torch_symm\.triton|triton|rich|typer|numpy|matplotlib"
    of_a_tool = re.compile(rf"\s*(from|import) ({over_it})\b")
    for path in package.rglob("*.py"):
        of_the_core = not any(path.is_relative_to(package / name) for name in ("tools", "triton"))
        if of_the_core and path not in COMMANDS:
            lines = path.read_text().splitlines()
            faults += [f"{path.name}: {line}" for line in lines if of_a_tool.match(line)]
    assert not faults, "\n" + "\n".join(faults)


def test_no_stream_reads_numbers():
    """NOTE [Numbers and iostreams] in kernels/core/decimal.hpp. Files are read as text, so a stream
    over a string can only be for numbers."""
    reads = re.compile(r"\bstd::(i?stringstream|stoi|stol|stoul|stoull|stod)\b")
    faults = [
        f"{path}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if reads.search(line)
    ]
    assert not faults, "use parse_decimal():\n" + "\n".join(faults)


def vendor_conditions(path: Path) -> list[str]:
    found = []
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        match = VENDOR_MACRO.match(line)
        if match:
            found.append(f"{path}:{number}: tests {match[1]}")
    return found


def test_vendor_conditions_stand_in_their_headers():
    faults = [
        fault
        for path in SOURCES
        if str(path) not in VENDOR_MACRO_FILES
        for fault in vendor_conditions(path)
    ]
    assert not faults, f"{len(faults)} vendor conditionals:\n" + "\n".join(faults)


def test_every_vendor_header_has_conditions():
    # Else the list above, or the expression, has gone stale.
    for name in VENDOR_MACRO_FILES:
        assert vendor_conditions(Path(name)), name


@pytest.mark.parametrize(
    "line",
    [
        "#if defined(__HIP_DEVICE_COMPILE__)",
        "  #ifdef __CUDA_ARCH__",
        "#elif SYMM_AMDGCN",
        "#if HIP_VERSION_MAJOR >= 6",
        "  if constexpr (SYMM_GPU_HIP) return nullptr;",
        "constexpr int kKind = SYMM_GPU_HIP ? 1 : 2;",
    ],
)
def test_the_vendor_check_finds_conditions(line):
    assert VENDOR_MACRO.match(line)


# What a .cpp file declares for itself; clang-tidy and g++ see it as part of a larger unit, where
# neither says that it is not used.
FOR_ITSELF = re.compile(
    r"^\s*(?:using [\w:]+::(\w+);|namespace (\w+) = |"
    r"(?:static )?constexpr [^=;(]*?(\w+)(?:\[\w*\])* ?[={])",
    re.MULTILINE,
)


def unused_names(text: str) -> list[str]:
    """What FOR_ITSELF finds and the rest of the text does not name."""
    text = re.sub(r"//.*", "", text)
    names = {name for match in FOR_ITSELF.findall(text) for name in match if name}
    return sorted(name for name in names if len(re.findall(rf"\b{name}\b", text)) == 1)


def test_sources_use_what_they_name():
    sources = [ROOT / path for path in SOURCES if path.suffix == ".cpp"]
    sources += (ROOT / "test").rglob("*.cpp")
    unused = {str(path): unused_names(path.read_text()) for path in sources}
    assert {path: names for path, names in unused.items() if names} == {}


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        ("using std::map;", "map"),
        ("  using c10d::symmetric_memory::rendezvous;  // rendezvous", "rendezvous"),
        ("namespace py = pybind11;", "py"),
        ("constexpr int kCount = 3;", "kCount"),
        ("static constexpr std::array<int, 2> kPair{1, 2};", "kPair"),
        ("constexpr const char* kNames[] = {nullptr};", "kNames"),
    ],
)
def test_the_check_of_names_finds_unused_ones(line, unused):
    assert unused_names(line) == [unused]
    assert unused_names(f"{line}\nauto x = {unused};") == []


def test_no_copies_for_hip():
    """The kernels of HIP are those of CUDA."""
    copies = [str(path) for layer in LAYERS for path in (ROOT / layer).rglob("*.hip*")]
    assert not copies


def shell_fault(script: Path) -> str:
    """What speaks against a shell script: '' for nothing."""
    if not script.read_text().startswith("#!/usr/bin/env bash\n"):
        return "does not begin with bash's line"
    if not os.access(script, os.X_OK):
        return "is not executable"
    return subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr


def test_shell_scripts_can_be_run():
    scripts = [ROOT / ".ci" / "run", *(ROOT / ".ci").glob("*.sh"), *(ROOT / "test").rglob("*.sh")]
    assert len(scripts) > 5
    faults = {str(path): fault for path in scripts if (fault := shell_fault(path))}
    assert not faults


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("#!/ usr / bin / env bash\necho\n", 0o755),
        ("#!/usr/bin/env bash\nif true; then\n", 0o755),
        ("#!/usr/bin/env bash\necho\n", 0o644),
    ],
)
def test_the_check_of_shell_scripts_finds_faults(tmp_path, text, mode):
    script = tmp_path / "script.sh"
    script.write_text(text)
    script.chmod(mode)
    assert shell_fault(script)


def test_headers_have_pragma_once():
    without = [str(path) for path in HEADERS if "#pragma once" not in (ROOT / path).read_text()]
    assert not without


def test_top_level_names():
    foreign = sorted(
        name
        for name in os.listdir(ROOT)
        if name not in TOP_LEVEL and not name.startswith(".") and not BUILD_RESULTS.fullmatch(name)
    )
    assert not foreign


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("kernels/core/x.hpp", '#include "symm_mem/segment/segment.hpp"', "the right of kernels"),
        ("kernels/core/x.hpp", '#include "kernels/plan/plan.hpp"', "after kernels/core in FOLDERS"),
        ("symm_mem/device/x.hpp", '#include "symm_mem/segment/segment.hpp"', "in FOLDERS"),
        ("symm_mem/process/x.hpp", "#include <torch/types.h>", "a header of torch"),
        ("backend/engine/x.cpp", "#include <c10/util/Exception.h>", "a header of torch"),
        ("kernels/cpu/x.cpp", "#include <cuda_runtime.h>", "a header of CUDA or HIP"),
        ("symm_mem/segment/x.cpp", '#include "segment.hpp"', "from the root"),
        ("symm_mem/segment/x.cpp", '#include "symm_mem/segment/no_such.hpp"', "does not exist"),
        ("backend/x.cpp", "#include <symm/no_such.hpp>", "does not exist"),
        ("backend/x.cpp", '#include "backend/include/symm/ProcessGroupSymm.hpp"', "in quotes"),
        ("backend/x.cpp", "#include <backend/WorkSymm.hpp>", "in angle brackets"),
        ("backend/include/symm/x.hpp", '#include "kernels/core/error.hpp"', "a private header"),
        ("symm_mem/c10d/x.cpp", "#include <symm/ProcessGroupSymm.hpp>", "to the right of symm_mem"),
    ],
)
def test_the_include_check_finds_faults(monkeypatch, path, text, fault):
    match = INCLUDE.match(text)
    monkeypatch.setattr(sys.modules[__name__], "includes", lambda _: [(1, match[1], match[2])])
    found = include_faults(Path(path))
    assert len(found) == 1
    assert fault in found[0]


def is_compiled_first(header: Path) -> bool:
    """Whether its own source includes it first, so that every build compiles it alone."""
    folder = header.parents[2] if is_public(header) else header.parent
    source = folder / header.with_suffix(".cpp").name
    return (ROOT / source).exists() and project_file(*includes(source)[0][1:]) == header


def compile_alone(header: Path, flags: list[str], folder: Path) -> str:
    """The compiler's complaint about a file that includes nothing but this header, or ""."""
    source = folder / (str(header).replace("/", "_") + ".cpp")
    source.write_text(f'#include "{header}"\n')
    # With ccache an unchanged header costs next to nothing the next time.
    compiler = ["ccache", "g++"] if shutil.which("ccache") else ["g++"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [*compiler, "-std=c++20", "-O0", *warnings, f"-I{ROOT}", *flags]
    command += [f"-I{ROOT / root}" for root in PUBLIC_ROOTS]
    command += ["-c", str(source), "-o", str(source.with_suffix(".o"))]
    environment = {**os.environ, "CCACHE_NOHASHDIR": "1"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return f"{header}:\n{result.stderr[:2000]}" if result.returncode else ""


def compile_all_alone(headers: list[Path], flags: list[str], folder: Path):
    headers = [header for header in headers if not is_compiled_first(header)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = list(pool.map(lambda header: compile_alone(header, flags, folder), headers))
    assert not any(complaints), "\n".join(filter(None, complaints))


@pytest.mark.timeout(180)
def test_torch_free_headers_compile_alone(tmp_path):
    gpu_free = [path for path in HEADERS if not is_torch_facing(path) and not is_gpu_file(path)]
    json = find_spec("nlohmann_json")
    flags = [f"-isystem{json.submodule_search_locations[0]}/include"] if json else []
    compile_all_alone(gpu_free, flags, tmp_path)


@pytest.mark.timeout(300)
def test_torch_facing_headers_compile_alone(tmp_path):
    torch = find_spec("torch")
    assert torch is not None, "torch is not installed"
    include = f"{torch.submodule_search_locations[0]}/include"
    flags = [f"-isystem{include}", f"-isystem{include}/torch/csrc/api/include"]
    flags += ["-DUSE_DISTRIBUTED", "-DUSE_C10D", f"-isystem{sysconfig.get_path('include')}"]
    compile_all_alone([path for path in HEADERS if is_torch_facing(path)], flags, tmp_path)
