"""Whether another process holds a file lock of `filelock`."""

from __future__ import annotations

from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file lock `path` now."""
    from filelock import FileLock, Timeout  # takes longer to import than all of this folder

    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
