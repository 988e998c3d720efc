"""What this installation is and can do on this machine: ``python -m torch_symm.info --help``."""

from torch_symm.tools import require

if __name__ == "__main__":
    command = "python -m torch_symm.info"
    require(command, "rich", "typer")
    from torch_symm.tools.info import app

    app(prog_name=command)
