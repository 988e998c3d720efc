"""Bandwidth and latency of the collectives: ``python -m torch_symm.bench --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("bench", "bench.cli:app", "numpy", "rich", "typer")
