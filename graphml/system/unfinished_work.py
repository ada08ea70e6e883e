"""Files that take long to write, which a kill does not undo: the next process with the same work goes on.

They are in a hidden folder beside their target, whose name follows from the work; they get their own names
when all of them are whole. An error or Ctrl-C removes the folder; a kill or a power cut leaves it, for
`KEPT_S`. Knows paths; nothing of what is written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from graphml.system.replaced_file import folder_beside, give_name, newest_change, remove_stale, replacing

UNFINISHED = ".graphml-{}.unfinished"
KEPT_S = 7 * 86400.0
"""Seconds without a change after which nobody goes on with the work."""
LOCK, DONE = "lock", ".done"
_MARK = re.compile(r"(\d{1,9}) (\d{1,18})\n")


@contextmanager
def unfinished_work(target: Path, key: str) -> Iterator[Path]:
    """Within, write to the folder that comes; it is gone afterwards, with what is still in it.

    key: what distinguishes the work from any other for the same target. Another process that does the same
    work at the same time has a folder of its own. Raises what the file system raises.
    """
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a plain file", str(target))
    remove_stale([target.parent])
    _remove_abandoned(target.parent)
    digest = hashlib.sha256(f"{target.name}\0{key}".encode()).hexdigest()
    folder = target.with_name(UNFINISHED.format(digest[:32]))
    with contextlib.ExitStack() as held:
        if not _take(folder, held):
            folder = held.enter_context(folder_beside(target))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _take(folder: Path, held: contextlib.ExitStack) -> bool:
    """Whether the folder is ours alone now, until the stack is closed."""
    folder.mkdir(0o700, exist_ok=True)
    state = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and state.st_uid != os.getuid()):
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (NotImplementedError, OSError):  # a file system without locks
        shutil.rmtree(folder, ignore_errors=True)
        return False
    if os.name == "nt":  # where a file that is open, as the lock is, stays
        held.callback(shutil.rmtree, folder, ignore_errors=True)
    held.callback(lock.release)
    return (folder / LOCK).exists()


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(UNFINISHED.format("*")):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and newest_change(folder) < time.time() - KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def mark_done(path: Path, count: int, n_bytes: int) -> None:
    """Note that the first so many parts of a file, of so many bytes, are on the disk."""
    with replacing(path.with_name(path.name + DONE)) as mark:
        mark.write_text(f"{count} {n_bytes}\n")


def read_done(path: Path) -> tuple[int, int]:
    """What was noted of a file, (0, 0) for nothing, or where the file has fewer bytes."""
    try:
        match = _MARK.fullmatch(path.with_name(path.name + DONE).read_text())
        n_bytes = path.stat().st_size
    except (OSError, UnicodeDecodeError):
        return 0, 0
    return (int(match[1]), int(match[2])) if match and int(match[2]) <= n_bytes else (0, 0)


def put_in_place(paths: Sequence[Path], finals: Sequence[Path]) -> None:
    """Give written files their names, the first one last: no moment has parts of two sets and a first one."""
    if len(paths) > 1 and finals[0].exists():
        paths[0].chmod(finals[0].stat().st_mode & 0o7777)
        finals[0].unlink()
    for path, final in zip(reversed(paths), reversed(finals), strict=True):
        give_name(path, final, durable=path is paths[0])
