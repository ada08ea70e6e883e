"""A file that one process writes: a second one is refused. Knows files; nothing of what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from graphml.errors import UsageError


def lock_alone(file: IO[Any], path: Path) -> None:
    """Keep other processes from an open file until it is closed; UsageError where one has it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(f"{path}: another job writes this file") from None
