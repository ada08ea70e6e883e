"""Has a module traced by a process that has torch. Knows processes and folders; nothing of graphs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from graphml.authoring.importing.description import TracedModule, read_description
from graphml.authoring.peer_process import ask
from graphml.errors import UsageError

PROGRAM = "trace_torch.py"


def check_source(source: str) -> Path:
    """The folder or the file of a source; a UsageError for anything else."""
    kind, _, rest = source.partition(":")
    if kind == "hf" and rest:
        folder = Path(rest)
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder}: wanted a folder with config.json; download the checkpoint first")
        return folder
    file, _, factory = rest.rpartition(":")
    if kind == "module" and file and factory.isidentifier():
        if not Path(file).is_file():
            raise UsageError(f"{file}: no such file")
        return Path(file)
    raise UsageError(f"SOURCE: wanted hf:FOLDER or module:FILE.py:factory; got {source!r}")


def trace(source: str, python: str = sys.executable, trusted: bool = False) -> TracedModule:
    """The description of a source. python: of an environment with torch; trusted: run the folder's code."""
    path = check_source(source)
    kind, _, rest = source.partition(":")
    whole = f"{path.resolve()}" if kind == "hf" else f"{path.resolve()}:{rest.rpartition(':')[2]}"
    with tempfile.TemporaryDirectory() as folder:
        request = {"source": f"{kind}:{whole}", "out": folder, "trusted": trusted}
        ask("import", PROGRAM, python, request)
        return read_description(Path(folder))
