"""Which operations capture into a CUDA graph: ``python -m torch_symm.probe --help``."""

from torch_symm.tools import require

if __name__ == "__main__":
    command = "python -m torch_symm.probe"
    require(command, "numpy", "rich", "typer")
    from torch_symm.tools.probe.cli import app

    app(prog_name=command)
