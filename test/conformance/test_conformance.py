"""What passes of PyTorch's own distributed tests over gloo must pass over symm.

Each of those tests is a case here with its own outcome. They all run when the first case asks, a
few at a time; gloo then runs only what fails over symm.
"""

import pytest

from run_distributed_test import CANNOT_PASS, all_names, run_all

JOBS = 2
LIMIT_S = 60  # a test

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def outcomes():
    return run_all(all_names(), "symm", JOBS, LIMIT_S)


@pytest.fixture(scope="module")
def outcomes_of_gloo(outcomes):
    failed = [name for name, outcome in outcomes.items() if outcome["status"] == "fail"]
    return run_all(failed, "gloo", JOBS, LIMIT_S)


@pytest.mark.parametrize("name", all_names())
def test_distributed(name, outcomes, request):
    outcome = outcomes[name]
    if outcome["status"] == "skip":
        pytest.skip(" ".join(outcome["detail"].split()))
    if outcome["status"] == "fail" and name in CANNOT_PASS:
        pytest.skip(CANNOT_PASS[name])
    if outcome["status"] == "fail":
        on_gloo = request.getfixturevalue("outcomes_of_gloo")[name]
        if on_gloo["status"] != "pass":
            pytest.skip("does not pass over gloo, either")
        pytest.fail(outcome["detail"])
