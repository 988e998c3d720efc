"""The table of the HIP kernels may not get worse unnoticed, and faults in assembly are named."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".cmake/hip/check_assembly.py"

GOOD = """
_Z4movev:
\tglobal_load_dword v1, v[2:3], off sc0 sc1
\tbuffer_inv sc0 sc1
\tglobal_load_dwordx4 v[4:7], v[2:3], off nt
\tglobal_store_dwordx4 v[2:3], v[4:7], off nt
\tbuffer_wbl2 sc0 sc1
\ts_waitcnt vmcnt(0)
\tglobal_store_dword v[2:3], v1, off sc0 sc1
\ts_endpgm
\t.amdhsa_kernel _Z4movev
; NumSgprs: 16
; NumVgprs: 24
; TotalNumVgprs: 40
; ScratchSize: 0
; LDSByteSize: 512 bytes/workgroup (compile time only)
; Occupancy: 8
"""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_assembly", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def faults_of(check: ModuleType, folder: Path, text: str) -> list[str]:
    path = folder / "move.gfx942.s"
    path.write_text(text)
    return check.check_code([path])[0]


def test_good_assembly_has_no_fault(check, tmp_path):
    assert faults_of(check, tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("\ts_waitcnt vmcnt(0)\n", "", "store behind an unwaited buffer_wbl2"),
        ("\tbuffer_wbl2 sc0 sc1\n", "", "no release"),
        ("\tbuffer_inv sc0 sc1\n", "", "no acquire"),
        ("v1, v[2:3], off sc0 sc1", "v1, v[2:3], off", "no load of a flag"),
        ("v[2:3], v1, off sc0 sc1", "v[2:3], v1, off", "no store of a flag"),
        ("global_load_dwordx4", "global_load_dword", "no 16-byte load"),
        ("off nt\n\tbuffer_wbl2", "off\n\tbuffer_wbl2", "no 16-byte store"),
        ("global_load_dword ", "flat_load_dword ", "flat access"),
        ("ScratchSize: 0", "ScratchSize: 8", "8 bytes of scratch"),
    ],
)
def test_a_fault_is_named(check, tmp_path, old, new, fault):
    assert old in GOOD
    assert any(fault in line for line in faults_of(check, tmp_path, GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        ("TotalNumVgprs: 40", "TotalNumVgprs: 48", None),
        ("TotalNumVgprs: 40", "TotalNumVgprs: 49", "vgprs 49, was 40"),
        ("NumSgprs: 16", "NumSgprs: 33", "sgprs 33, was 16"),
        ("LDSByteSize: 512", "LDSByteSize: 769", "lds 769, was 512"),
        ("Occupancy: 8", "Occupancy: 7", "occupancy 7, was 8"),
        ("v[2:3], v1, off sc0 sc1", "v[2:3], v1, off", "own 1, was 0"),
        ("_Z4movev", "_Z5otherv", "_Z4movev: gone"),
        ("_Z4movev", "_Z5otherv", "_Z5otherv: not in table.csv"),
    ],
)
def test_the_table_may_not_get_worse(check, tmp_path, monkeypatch, old, new, worse):
    def run(text: str, *options: str) -> list[str]:
        (tmp_path / "move.gfx942.s").write_text(text)
        table = str(tmp_path / "table.csv")
        monkeypatch.setattr(sys, "argv", ["check_assembly.py", str(tmp_path), table, *options])
        check.main()
        kernels = check.check_code([tmp_path / "move.gfx942.s"])[1]
        return check.compare(kernels, Path(table))

    assert run(GOOD, "--write") == []
    faults = run(GOOD.replace(old, new))
    assert faults == [] if worse is None else any(worse in line for line in faults)
