"""What this installation is and can do on this machine: ``python -m torch_symm.info --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("info", "info:app", "rich", "typer")
