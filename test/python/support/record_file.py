"""The tools' way to write JSON, read from the tree: scripts use it where there is no package."""

import runpy
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[3] / "python_registration" / "torch_symm"
_functions = runpy.run_path(str(_PACKAGE / "tools" / "record_file.py"))
to_text, write_records = _functions["to_text"], _functions["write_records"]
