"""The newest clang of this machine that reads the OpenCL C of kernels; as a command, its path.

`python3 tests/gpu/clang.py` fails where there is none. Needs Python's own library alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST = 15
"""Version 14 does not know all functions of the language: `vload_half2` without an extension for halves."""
LLVM = Path("/usr/lib")
"""Where Debian has a folder for each version of LLVM; PoCL brings one whose clang is not on the path."""


def commands(path: str, llvm: Path = LLVM) -> Iterator[Path]:
    """Every clang in the folders of a search path, and in those of LLVM."""
    folders = [*map(Path, filter(None, path.split(os.pathsep))), *sorted(llvm.glob("llvm-*/bin"))]
    for folder in folders:
        for file in sorted(folder.glob("clang*")):
            if re.fullmatch(r"clang(-\d+)?", file.name) and os.access(file, os.X_OK):
                yield file


def version(command: Path) -> int:
    """The first part of its version; 0 where it does not tell."""
    try:
        run = subprocess.run([command, "-dumpversion"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.match(r"(\d+)\.", run.stdout)
    return int(found[1]) if found else 0


def newest(path: str, llvm: Path = LLVM) -> tuple[Path | None, str]:
    """The newest that is new enough, and why there is none."""
    found = {version(one): one for one in {file.resolve() for file in commands(path, llvm)}}
    best = max(found, default=0)
    if best >= LEAST:
        return found[best], ""
    what = f"clang is version {best} ({found[best]})" if found else "there is no clang"
    return (
        None,
        f"{what}; OpenCL C that PoCL cannot read wants {LEAST} or newer: apt-get install clang-{LEAST}",
    )


if __name__ == "__main__":
    command, missing = newest(os.environ.get("PATH", ""))
    sys.exit(missing) if command is None else print(command)
