"""The pytest process is the zygote of the ranks (see support/harness.py), so it must stay free of
threads and of libraries that start them."""

import collections
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# torch must not initialise CUDA here, only to see whether it is there.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# On the CPU Triton's kernels run in its interpreter, which must be known when triton is imported,
# by whatever test does so first.
if os.environ.get("SYMM_TEST_DEVICE", "cpu") == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402

import harness  # noqa: E402
from scripts import ScriptRunner  # noqa: E402

MARKERS = [
    "huge: 16 GiB of memory; run with `-m huge`",
    "cuda: needs a GPU; run with SYMM_TEST_DEVICE=cuda",
    "cpu(reason): makes no sense, or no difference, on CUDA",
    "gpus(number): needs as many GPUs",
    "sampled(most): at most so many of its cases where ranks take turns on a GPU",
]


def pytest_configure(config):
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def _reason_to_skip(item, huge: bool) -> str | None:
    if item.get_closest_marker("huge") and not huge:
        return "needs about 16 GiB of memory and minutes of time: run `pytest -m huge`"
    if item.get_closest_marker("cuda") and not harness.ON_CUDA:
        return "needs a GPU: run with SYMM_TEST_DEVICE=cuda"
    if (marker := item.get_closest_marker("cpu")) and harness.ON_CUDA:
        return "CPU only: " + marker.args[0]
    if (marker := item.get_closest_marker("gpus")) and harness.ON_CUDA:
        if marker.args[0] > harness.GPUS:
            return f"needs {marker.args[0]} GPUs, the machine has {harness.GPUS}"
    return None


def _left_out(items) -> list:
    """Where ranks take turns on a GPU, which makes a case take seconds: those cases of a test
    marked `sampled` that are not among its sample."""
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and harness.crowded(harness.WORLD_SIZE):
            cases[item.function].append(item)
    left_out = []
    for same in cases.values():
        taken = harness.spread(same, same[0].get_closest_marker("sampled").args[0])
        left_out += [item for item in same if item not in taken]
    return left_out


def pytest_collection_modifyitems(config, items):
    part, parts = map(int, os.environ.get("SYMM_TEST_PART", "0/1").split("/"))
    config.hook.pytest_deselected(items=[i for n, i in enumerate(items) if n % parts != part])
    items[:] = items[part::parts]
    huge = "huge" in config.option.markexpr
    for item in items:
        if reason := _reason_to_skip(item, huge):
            item.add_marker(pytest.mark.skip(reason=reason))
    for item in _left_out(items):
        item.add_marker(pytest.mark.skip(reason="a sample, as the ranks take turns on a GPU"))


def pytest_runtest_logreport(report):
    """What failed is told at once: a run that is ended has then said it."""
    if report.failed:
        print(f"\n{report.nodeid} failed:\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session")
def run_script():
    """See ScriptRunner.__call__."""
    runner = ScriptRunner()
    yield runner
    runner.close()
