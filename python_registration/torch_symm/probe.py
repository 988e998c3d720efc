"""Which operations capture into a CUDA graph: ``python -m torch_symm.probe --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("probe", "probe.cli:app", "numpy", "rich", "typer")
