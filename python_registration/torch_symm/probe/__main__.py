"""Entry point of ``python -m torch_symm.probe``."""

from torch_symm.probe.cli import app

app(prog_name="python -m torch_symm.probe")
