"""Entry point of ``python -m torch_symm.bench``."""

from torch_symm.bench.cli import app

app(prog_name="python -m torch_symm.bench")
