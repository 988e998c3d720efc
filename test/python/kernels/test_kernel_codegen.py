"""What Triton makes of torch_symm.triton for NVIDIA's and AMD's GPUs: the orders of the memory are
in the assembly. No GPU is needed, and none is used."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from kernel_runs import NEEDS_TRITON

pytestmark = [
    pytest.mark.long,
    pytest.mark.cpu("the same without a GPU"),
    NEEDS_TRITON,
]

VERSION = version("triton") if find_spec("triton") else "0"
# Older ones have other instructions for a load that acquires and a release.
NEW = pytest.mark.skipif(
    tuple(int(part) for part in VERSION.split(".")[:2]) < (3, 9),
    reason=f"AMD's assembly is compared with that of Triton 3.9, this is {VERSION}",
)
COMPILE = Path(__file__).with_name("codegen_kernels.py")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Assembly by kernel, of a backend and an architecture."""
    found = {}

    def of(backend: str, arch: str, *names: str, **settings: str) -> dict[str, str]:
        key = (backend, arch, names, *settings)
        if key not in found:
            cache = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
            env = {**os.environ, **cache, **settings}
            env.pop("TRITON_INTERPRET", None)
            command = [sys.executable, str(COMPILE), backend, arch, *names]
            result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
            assert result.returncode == 0, result.stderr[-3000:]
            found[key] = json.loads(result.stdout)
        return found[key]

    return of


def first_not_found(text: str, patterns: list[str]) -> str:
    """The first of `patterns` that does not come behind those before it, "" where all do."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\.loc|//|;[^;])", line)]
    position = 0
    for pattern in patterns:
        while position < len(lines) and not re.search(pattern, lines[position]):
            position += 1
        if position == len(lines):
            return pattern
        position += 1
    return ""


STORE, LOAD, MEET = r"st\.global\.v4\.b32", r"ld\.global\.v4\.b32", r"bar\.sync"
NVIDIA = {
    # Blocks keep their vectors on the way to a peer; all threads meet before one releases.
    "put_kernel": [STORE, STORE, MEET, r"(atom|red)\.global\.sys\.release\.exch\.b32"],
    "remote_kernel": [STORE, STORE, MEET, r"(atom|red)\.global\.sys\.release\.add"],
    "relaxed_signals_kernel": [
        r"(atom|red)\.global\.(sys\.relaxed|relaxed\.sys)\.exch\.b32",
        r"(atom|red)\.global\.(sys\.relaxed|relaxed\.sys)\.add",
    ],
    # One thread acquires and tells the others, whose loads come behind.
    "wait_kernel": [r"ld\.global\.sys\.acquire\.b32", MEET, LOAD, LOAD],
    "fence_kernel": [
        *[r"st\.global\.b32", MEET, r"fence\.acq_rel\.sys", MEET],
        *[r"st\.global\.b32", MEET, r"fence\.acq_rel\.sys", MEET],
    ],
    "barrier_kernel": [
        *[MEET, r"(atom|red)\.global\.sys\.release\.exch\.b64"],
        *[r"ld\.global\.sys\.acquire\.b64", MEET],
    ],
    "atomics_kernel": [
        r"(atom|red)\.global\.(sys\.relaxed|relaxed\.sys)\.add",
        r"atom\.global\.(sys\.acquire|acquire\.sys)\.exch",
        *[MEET, r"(atom|red)\.global\.(sys\.release|release\.sys)\.min"],
        *[MEET, r"(atom|red)\.global\.(sys\.acq_rel|acq_rel\.sys)\.max"],
        *[MEET, r"(atom|red)\.global\.(gpu\.acq_rel|acq_rel\.gpu)\.and"],
        *[MEET, r"(atom|red)\.global\.(sys\.acq_rel|acq_rel\.sys)\.or"],
        *[MEET, r"atom\.global\.(sys\.acq_rel|acq_rel\.sys)\.cas"],
    ],
}


@pytest.mark.parametrize("name", NVIDIA)
def test_ptx(compiled, name):
    text = compiled("cuda", "90")[name]
    assert first_not_found(text, NVIDIA[name]) == ""
    assert "ld.global.nc" not in text  # which may return what a peer has overwritten


def test_a_relaxed_signal_waits_for_nothing(compiled):
    text = compiled("cuda", "90")["relaxed_signals_kernel"]
    assert not re.search(r"bar\.sync|release|acq_rel|fence", text)


def test_what_ends_a_wait_is_the_same_for_all_threads(compiled):
    """The clock and the status differ between threads, so one thread's atomic carries them."""
    text = compiled("cuda", "90")["wait_kernel"]
    patterns = ["%globaltimer", r"atom\.global\.relaxed\.gpu\.cas\.b64", MEET]
    assert first_not_found(text, [*patterns, r"ld\.global\.gpu\.relaxed\.b64", MEET]) == ""


@pytest.mark.parametrize("name", ["wait_kernel", "barrier_kernel"])
def test_one_thread_of_a_program_reads_the_hosts_memory(compiled, name):
    """And the clock: by every thread a look over the host's bus takes as long as many waits."""
    lines = compiled("cuda", "90")[name].splitlines()
    reads = [line.strip() for line in lines if re.search(r"ld\.volatile|%globaltimer", line)]
    assert len(reads) >= 3
    assert all(line.startswith("@one ") for line in reads)


RED = r"@%p multimem\.red\.release\.sys\.global\."
ALIAS = r"fence\.proxy\.alias"


def registers(count):
    one = r"%\w+"
    return rf"\{{{', '.join([one] * count)}\}}" if count > 1 else one


def load(suffix, count=1):
    instruction = rf"@%p multimem\.ld_reduce\.relaxed\.sys\.global\.{suffix}"
    return [ALIAS, rf"{instruction} {registers(count)}, \[%rd\d+\]", ALIAS]


def to_all(suffix, count=1):
    instruction = rf"@%p multimem\.st\.relaxed\.sys\.global\.{suffix}"
    return [ALIAS, rf"{instruction} \[%rd\d+\], {registers(count)}", ALIAS]


# Kernel, element and operation: what its assembly has, in this order.
MULTIMEM = {
    "load_reduce_kernel:fp32:add": [*load(r"add\.v4\.f32", 4), r"st\.global\.v4\.b32"],
    "load_reduce_kernel:fp16:add": load(r"add\.acc::f32\.v8\.f16", 8),
    "load_reduce_kernel:bf16:add": load(r"add\.acc::f32\.v8\.bf16", 8),
    "load_reduce_kernel:bf16:min": load(r"min\.v8\.bf16", 8),
    "load_reduce_kernel:fp64:add": load(r"add\.f64"),
    "load_reduce_kernel:u32:add": load(r"add\.u32"),
    "load_reduce_kernel:u32:min": load(r"min\.u32"),
    "load_reduce_kernel:i32:max": load(r"max\.s32"),
    "load_reduce_kernel:i64:add": load(r"add\.u64"),
    "load_reduce_kernel:i32:and": load(r"and\.b32"),
    "store_to_all_kernel:fp32": [*to_all(r"v4\.f32", 4), MEET],
    "store_to_all_kernel:bf16": [*to_all(r"v8\.bf16", 8), MEET],
    "store_to_all_kernel:i64": [*to_all(r"b64"), MEET],
    # One thread adds, behind all threads' accesses.
    "reduce_kernel:u32:add": [ALIAS, MEET, r"mov\.u32 %thread, %tid\.x", RED + r"add\.u32", ALIAS],
    "reduce_kernel:i64:max": [ALIAS, MEET, RED + r"max\.s64", ALIAS],
    "reduce_kernel:fp32:add": [ALIAS, MEET, RED + r"add\.f32", ALIAS],
    "relaxed_kernel:i32": [r"@%p multimem\.red\.relaxed\.sys\.global\.add\.s32"],
}


@pytest.mark.parametrize("name", MULTIMEM)
def test_multimem(compiled, name):
    text = compiled("cuda", "90", *MULTIMEM)[name].replace(";", ";\n")
    assert first_not_found(text, MULTIMEM[name]) == ""


REFUSED = {
    ("cuda", "90", "load_reduce_kernel:fp32:min"): "expected add for fp32, got min",
    ("cuda", "90", "load_reduce_kernel:i8:add"): "expected another dtype for int8, got add",
    ("cuda", "90", "reduce_kernel:bf16:add"): "expected another dtype for bf16, got add",
    ("cuda", "80", "store_to_all_kernel"): "compute capability 9.0 or more, got sm80",
    ("hip", "gfx942", "load_reduce_kernel"): "compute capability 9.0 or more, got gfx942",
}


@pytest.mark.parametrize("case", REFUSED)
def test_multimem_is_refused(case):
    """Where there is no such instruction, when the kernel is compiled."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(COMPILE), *case]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    assert result.returncode == 1
    assert REFUSED[case] in result.stderr


GFX942 = ("hip", "gfx942")
VISIBLE = [r"buffer_wbl2 sc0 sc1", r"s_waitcnt vmcnt\(0\)"]
FRESH = [r"s_waitcnt vmcnt\(0\)", r"buffer_inv sc0 sc1"]
RELEASE = [*VISIBLE, "s_barrier", *VISIBLE]  # each wave its own stores, then the one that signals
AMD = {
    "put_kernel": ["global_store_dwordx4", *RELEASE, r"global_atomic_swap .* sc1"],
    "remote_kernel": ["buffer_store_dwordx4", *RELEASE, r"global_atomic_add .* sc1"],
    "wait_kernel": [r"global_atomic_add .* sc1", *FRESH, "s_barrier", "global_load_dwordx4"],
    "fence_kernel": [
        *["global_store_dword ", *VISIBLE, "buffer_inv sc0 sc1", "s_barrier"],
        *["global_store_dword ", *VISIBLE, "buffer_inv sc0 sc1", "s_barrier"],
    ],
    "barrier_kernel": [
        *[*RELEASE, r"global_atomic_swap_x2 .* sc1"],
        *[r"global_atomic_(add|or)_x2 .* sc1", *FRESH, "s_barrier"],
    ],
    "atomics_kernel": [
        *[r"global_atomic_swap .* sc1", *FRESH],
        # min, max and or of all ranks: by compare and swap, which buses have.
        *[*VISIBLE, r"global_atomic_cmpswap .* sc1"],
        *[*VISIBLE, r"global_atomic_cmpswap .* sc1", *FRESH],
        *["global_atomic_and ", *VISIBLE, r"global_atomic_cmpswap .* sc1", *FRESH],
        *[*VISIBLE, r"global_atomic_cmpswap .* sc1", *FRESH],
    ],
}


@NEW
@pytest.mark.parametrize("name", AMD)
def test_amdgcn(compiled, name):
    text = compiled(*GFX942)[name]
    assert first_not_found(text, AMD[name]) == ""
    if name == "atomics_kernel":  # the relaxed one, which may stand anywhere
        assert first_not_found(text, [r"global_atomic_add .* sc1"]) == ""


EXAMPLES = ["all_reduce", "ring_matmul", "moe", "decode", "heat"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_compile(compiled, name):
    """As they are, for both; each signals and waits for all ranks."""
    ptx, amdgcn = (compiled(*target)[f"{name}_kernel"] for target in (("cuda", "90"), GFX942))
    assert first_not_found(ptx, [r"sys\.release", r"ld\.global\.sys\.acquire"]) == ""
    assert first_not_found(amdgcn, [*RELEASE, r"global_atomic_\w+ .* sc1", *FRESH]) == ""


TILES = ["SMALL_TILES", "WIDE_TILES", "LARGE_TILES"]
RINGS = [f"ring_matmul_kernel:bf16:{tiles}" for tiles in TILES]
ASYNC_FENCE = r"fence\.proxy\.async\.global"
TILE_LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared"


@pytest.mark.parametrize("name", RINGS)
def test_tiles_by_descriptors(compiled, name):
    """With the options for bfloat16: a shard goes by vectors, and its tiles come by the async
    proxy, behind its fence, to the tensor cores."""
    text = compiled("cuda", "90", *RINGS)[name]
    assert first_not_found(text, [LOAD, STORE]) == ""
    assert first_not_found(text, [MEET, r"(atom|red)\.global\.sys\.release\.add"]) == ""
    assert first_not_found(text, [r"cp\.async\.bulk\.tensor\.2d\.global"]) == ""
    product = [TILE_LOAD, r"wgmma\.mma_async"]
    waited = [r"ld\.global\.sys\.acquire\.b32", MEET, ASYNC_FENCE, *product]
    assert first_not_found(text, [*product, *waited]) == ""


def waits_without_a_fence(text):
    """How many looks of waits there are, and from how many of them a way leads to a tile, a copy, a
    release or the end without the fence of the async proxy."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if not re.match(r"\.loc|//", line)]
    labels = {line.split(":")[0]: n for n, line in enumerate(lines) if line.startswith("$L")}
    used = re.compile(rf"{TILE_LOAD}|{LOAD}|{STORE}|sys\.release|^ret;")

    def misses(place):
        ahead, seen = [place], set()
        while ahead:
            place = ahead.pop()
            if place in seen or re.search(ASYNC_FENCE, lines[place]):
                continue
            seen.add(place)
            if used.search(lines[place]):
                return True
            jump = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", lines[place])
            if jump:
                ahead.append(labels[jump[1]])
            if not jump or lines[place].startswith("@"):
                ahead.append(place + 1)
        return False

    looks = [n for n, line in enumerate(lines) if re.search(r"ld\.global\.sys\.acquire", line)]
    return len(looks), sum(misses(look) for look in looks)


@pytest.mark.parametrize("name", [*RINGS, "wait_kernel", "barrier_kernel"])
def test_the_async_proxy_is_behind_every_wait(compiled, name):
    names = RINGS if name in RINGS else ("wait_kernel", "barrier_kernel")
    text = compiled("cuda", "90", *names)[name]
    looks, without = waits_without_a_fence(text)
    assert looks >= (4 if name in RINGS else 1)
    assert without == 0
    text = re.sub(ASYNC_FENCE, "", text, count=1)
    assert waits_without_a_fence(text)[1] > 0
    older = compiled("cuda", "80", "wait_kernel")["wait_kernel"]
    assert not re.search(ASYNC_FENCE, older)  # there is no such proxy


CLOCKS = [("cuda", "90", "%globaltimer"), ("hip", "gfx942", "s_memrealtime")]


@pytest.mark.parametrize(("backend", "arch", "clock"), CLOCKS)
def test_with_checks_and_a_timeline(compiled, backend, arch, clock):
    """Both cost nothing where they are off: the clock is read by waits alone then."""
    with_them = compiled(backend, arch, "put_kernel", SYMM_TIMELINE="1", SYMM_CHECK="1")
    without = compiled(backend, arch)
    assert with_them["put_kernel"].count(clock) >= 4  # before and behind the put, and the signal
    assert clock not in without["put_kernel"]
    assert len(with_them["put_kernel"]) > len(without["put_kernel"])


def test_older_amd(compiled):
    """gfx90a has other instructions for the same orders."""
    text = compiled("hip", "gfx90a", "fence_kernel")["fence_kernel"]
    patterns = ["buffer_wbl2", r"s_waitcnt vmcnt\(0\)", "buffer_invl2", "buffer_wbinvl1_vol"]
    assert first_not_found(text, ["global_store_dword ", *patterns, "s_barrier"]) == ""


def test_an_order_that_is_not_there_is_found():
    text = "st.global.v4.b32\n\t.loc bar.sync\nred.global.sys.release.exch.b32"
    assert first_not_found(text, [STORE, "red"]) == ""
    assert first_not_found(text, [STORE, MEET, "red"]) == MEET
    assert first_not_found(text, ["red", STORE]) == STORE
