"""A script with symm in another backend's place: ``python -m torch_symm.run --help``."""

from torch_symm.tools import require

if __name__ == "__main__":
    command = "python -m torch_symm.run"
    require(command, "rich", "typer")
    from torch_symm.tools.run import main

    main(command)
