"""A lock between processes, by an open file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file lock `path`, waiting for it; the system frees it if the holder dies."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt  # only there

            while True:
                with contextlib.suppress(OSError):  # waits ten seconds at most for each call
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl  # everywhere else

            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if sys.platform == "win32":
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file lock `path` now."""
    if not path.exists():
        return False
    with path.open("a+b") as file:
        try:
            if sys.platform == "win32":
                import msvcrt  # only there

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
            else:
                import fcntl  # everywhere else

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
