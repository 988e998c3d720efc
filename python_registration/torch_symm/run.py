"""A script with symm in another backend's place: ``python -m torch_symm.run --help``."""

from torch_symm.tools import start

if __name__ == "__main__":
    start("run", "run:main", "rich", "typer")
