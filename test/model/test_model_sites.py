"""The models name the code: what they break is there, and nothing that orders memory is missing."""

import re

import pytest

import lanes
from checker import ROOT
from pipelines import SLOTS
from sites import BULK, CHUNK, CHUNKS, LANE, NOT_MODELLED, SITES, Site

ORDERS = re.compile(
    r"\b(load_acquire|load_relaxed|load_relaxed_pair|store_release|store_relaxed"
    r"|store_relaxed_pair|compare_exchange_\w+|release_before_barrier|release_after_barrier"
    r"|exchange_seq_cst|load_seq_cst|fetch_add|fence_after_reads|fence_before_writes"
    r"|try_put|try_take|acquire_if|counter_reached"
    r"|device_fence|device_fetch_add|device_compare_exchange|__threadfence|atomic[A-Z]\w*)"
    r"\("
)
# Of the files whose barriers are sites of their own.
BARRIERS = re.compile(r"\b(warp_barrier|warp_all|block_barrier|block_all|__syncwarp)\(")
# The longest of the functions that are named.
FUNCTION_LINES = 40


def lines_of(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


def is_there(site: Site) -> bool:
    """Whether the code stands behind the function's name."""
    lines = lines_of(site.file)
    starts = [i for i, line in enumerate(lines) if site.function in line]
    return any(
        site.code in line for start in starts for line in lines[start : start + FUNCTION_LINES]
    )


@pytest.mark.parametrize("name", SITES)
def test_sites_stand_in_the_code(name):
    missing = [site for site in SITES[name] if not is_there(site)]
    assert not missing, f"{name}: the code has changed; so must the model: {missing}"


@pytest.mark.parametrize("file", NOT_MODELLED)
def test_every_order_of_the_protocols_is_in_a_model_or_left_out_by_name(file):
    known = {site.code for sites in SITES.values() for site in sites if site.file == file}
    known |= set(NOT_MODELLED[file])
    unknown = [
        f"{file}:{number}: {line.strip()}"
        for number, line in enumerate(lines_of(file), 1)
        if ORDERS.search(line) and not any(code in line for code in known)
    ]
    assert not unknown, "no model knows of\n" + "\n".join(unknown)


@pytest.mark.parametrize("file", [LANE, BULK, CHUNK, CHUNKS])
def test_every_barrier_of_a_warp_is_in_the_model_or_left_out_by_name(file):
    barriers = [
        line
        for line in lines_of(file)
        if BARRIERS.search(line) and not any(code in line for code in NOT_MODELLED[file])
    ]
    sites = {site for named in SITES.values() for site in named}
    assert len(barriers) == sum(
        site.file == file and bool(BARRIERS.search(site.code)) for site in sites
    )


def test_slots_are_those_of_the_code():
    text = (ROOT / "kernels/protocol/signal.hpp").read_text()
    assert f"kSlots = {SLOTS};" in text
    text = (ROOT / "kernels/protocol/device_layout.hpp").read_text()
    assert f"kBulkSlots = {lanes.SLOTS};" in text
