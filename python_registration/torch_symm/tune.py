"""A plan table for the machine at hand: ``python -m torch_symm.tune --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("tune", "tune.cli:app", "numpy", "rich", "typer")
