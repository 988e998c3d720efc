"""The documentation keeps up with the code: links lead somewhere, variables are described, and
every measurement has a page."""

import json
import re
from pathlib import Path

import pytest

from record_file import to_text

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = sorted((ROOT / "docs" / "evidence").iterdir())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Where C++ or Python reads the environment by a literal name.
QUOTED_VARIABLE = re.compile(r'"(SYMM_[A-Z0-9_]+)"')


def linked_files(page: Path) -> list[Path]:
    """What the links of `page` within the tree name, existing or not."""
    return [
        (page.parent / target.split("#")[0]).resolve()
        for target in LINK.findall(page.read_text())
        if not re.match(r"[a-z]+:|#", target)
    ]


def test_links_lead_to_files():
    broken = [
        f"{page.relative_to(ROOT)}: {file}"
        for page in PAGES
        for file in linked_files(page)
        if not file.exists()
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_every_measurement_is_linked():
    linked = {file for page in PAGES for file in linked_files(page)}
    assert [path.name for path in EVIDENCE if path not in linked] == []


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_measurements_have_a_record_a_line(path):
    text = path.read_text()
    assert text == to_text(json.loads(text)) + "\n"


def test_text_of_records():
    row = {"name": "é", "parts": [{"ms": 0.1, "wrong": None}, {"ms": float("inf"), "wrong": []}]}
    document = {"machine": {"gpus": ["a", "b"]}, "rows": [row, {}], "steps": {"build": {"exit": 0}}}
    text = to_text(document)
    assert json.loads(text) == document
    first, second = (json.dumps(each) for each in document["rows"])
    assert text.splitlines() == [
        "{",
        ' "machine": {"gpus": ["a", "b"]},',
        ' "rows": [',
        f"  {first},",
        f"  {second}",
        " ],",
        ' "steps": {',
        '  "build": {"exit": 0}',
        " }",
        "}",
    ]


def test_a_long_record_takes_a_line_for_each_item():
    document = [{"long": ["x" * 99] * 99, "short": 1}]
    text = to_text(document)
    assert json.loads(text) == document
    assert text.splitlines()[:3] == ["[", " {", '  "long": [']
    assert text.splitlines()[-4:] == ["  ],", '  "short": 1', " }", "]"]
    assert len(text.splitlines()) == 3 + 99 + 4
    assert to_text([{"long": tuple(["x" * 99] * 99), "short": 1}]) == text  # as a dataclass has it


def test_every_environment_variable_is_described():
    described = "\n".join(page.read_text() for page in PAGES)
    read = set()
    for layer in ("kernels", "symm_mem", "backend", "python_registration"):
        for path in (ROOT / layer).rglob("*"):
            if path.suffix in {".cpp", ".hpp", ".py"}:
                read |= set(QUOTED_VARIABLE.findall(path.read_text()))
    missing = sorted(name for name in read if not re.search(rf"\b{name}\b", described))
    assert not missing, f"no page of the documentation names {', '.join(missing)}"
