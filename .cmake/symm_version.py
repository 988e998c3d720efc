"""The package's version for scikit-build-core: CMakeLists.txt's, then torch's minor version as the
local part ("0.1.0+torch2.13"), as a build works with the torch that it was made for."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path


def dynamic_metadata(field: str, settings: dict | None = None) -> str:
    if field != "version" or settings:
        raise ValueError("symm_version gives the version, and takes no settings")
    text = Path("CMakeLists.txt").read_text()
    version = re.search(r"project\(symm VERSION ([0-9.]+)", text)[1]
    try:
        major, minor = metadata.version("torch").split(".")[:2]
    except metadata.PackageNotFoundError:
        return version  # pip's isolation hides it; CMake asks the environment's interpreter
    return f"{version}+torch{major}.{minor}"
