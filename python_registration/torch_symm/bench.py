"""Bandwidth and latency of the collectives: ``python -m torch_symm.bench --help``."""

from torch_symm.tools import require

if __name__ == "__main__":
    command = "python -m torch_symm.bench"
    require(command, "numpy", "rich", "typer")
    from torch_symm.tools.bench.cli import app

    app(prog_name=command)
