"""Every protocol holds in its models, and not without any of its orders and waits."""

from collections.abc import Iterator

import pytest

from checker import Checker, missing_tools
from families import Family, families
from pipelines import parse_calls
from protocols import report
from sites import NOT_NEEDED, SITES
from survey import survey

if missing_tools():
    pytest.skip(f"model check: {', '.join(missing_tools())} not installed", allow_module_level=True)

LONG = {"pipelines", "wire calls", "signal pads"}
LONG |= {"lanes", "lanes of three ranks"}
PROTOCOLS = [
    *["pipelines", "meetings of blocks", "wire calls"],
    *["wire barriers", "messages", "lanes", "lanes of three ranks", "signal pads", "mailboxes"],
    *["memory of a rank that gives up", "device call records", "reports", "sleep and wake"],
]


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checker]:
    return Checker(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def by_name(checker: Checker) -> dict[str, Family]:
    return {family.name: family for family in families(parse_calls(checker.trace()))}


def test_the_protocols_are_all_there(by_name):
    assert list(by_name) == PROTOCOLS


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in PROTOCOLS]
)
def test_protocol_holds_and_no_order_can_be_removed(name, checker, by_name):
    found = survey(by_name[name], checker)
    assert not found.problems, "\n".join(found.problems)
    assert all(row["states"] > 10 for row in found.models)
    assert found.mutations


def test_every_site_is_broken_by_some_mutation(by_name):
    broken = {
        mutation.site
        for family in by_name.values()
        for model in family.models
        for mutation in model.mutations()
    }
    assert broken == set(SITES)
    assert {mutation.rsplit(":", 1)[0] for mutation in NOT_NEEDED} <= broken


def test_the_machine_tells_a_missing_release_from_a_missing_acquire(checker):
    """The smallest model: one message. Either order alone is not enough."""
    model = report()
    assert checker.check(model).fault == ""
    faults = {str(m): checker.check(model.broken(m)).fault for m in model.mutations()}
    assert faults == {"report fault: not release": "race", "report look: not acquire": "race"}
