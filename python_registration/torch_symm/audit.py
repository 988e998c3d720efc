"""The first call at which two audited runs differ: ``python -m torch_symm.audit --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("audit", "audit.cli:app", "typer")
