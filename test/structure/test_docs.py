"""The documentation keeps up with the code: links lead somewhere, variables are described."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Where C++ or Python reads the environment by a literal name.
QUOTED_VARIABLE = re.compile(r'"(SYMM_[A-Z0-9_]+)"')


def test_links_lead_to_files():
    broken = []
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (page.parent / target.split("#")[0]).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n" + "\n".join(broken)


def test_every_environment_variable_is_described():
    described = "\n".join(page.read_text() for page in PAGES)
    read = set()
    for layer in ("kernels", "symm_mem", "backend", "python_registration"):
        for path in (ROOT / layer).rglob("*"):
            if path.suffix in {".cpp", ".hpp", ".py"}:
                read |= set(QUOTED_VARIABLE.findall(path.read_text()))
    missing = sorted(name for name in read if not re.search(rf"\b{name}\b", described))
    assert not missing, f"no page of the documentation names {', '.join(missing)}"
