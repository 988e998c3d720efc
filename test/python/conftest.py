"""The pytest process is the zygote of the ranks (see harness.py), so it must stay free of threads
and of libraries that start them."""

import os
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest  # noqa: E402

from scripts import ScriptRunner  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "huge: 16 GiB of memory; run with `-m huge`")


def pytest_collection_modifyitems(config, items):
    if "huge" in config.option.markexpr:
        return
    reason = "needs about 16 GiB of memory and minutes of time: run `pytest -m huge`"
    for item in items:
        if item.get_closest_marker("huge"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def run_script():
    """See ScriptRunner.__call__."""
    runner = ScriptRunner()
    yield runner
    runner.close()
