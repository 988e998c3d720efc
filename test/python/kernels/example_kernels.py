"""The examples of docs/examples/kernels, loaded by ranks: as they are, or with lines replaced."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "examples" / "kernels"
SHARED = ("compare", "matmul_options")
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def load(name: str, folder: str = "", replaced: tuple[tuple[str, str], ...] = ()) -> ModuleType:
    """The example, from a copy in `folder` where something of its text is replaced, once each."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    text, path = (FOLDER / f"{name}.py").read_text(), FOLDER / f"{name}.py"
    for old, new in replaced:
        assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    if replaced:
        # Triton reads a kernel's text from its file.
        path = Path(folder, f"{name}_{os.getpid()}.py")
        path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
