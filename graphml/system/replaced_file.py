"""A file that is replaced whole or not at all: a full disk or a kill leaves what was there.

What a killed process has left beside a file is removed by the next process that writes into the folder.

Knows paths; nothing of what is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".graphml-{}.partial"
STALE_S = 3600.0
"""Seconds without a change after which nobody writes a file any more, in whatever container or machine."""
_SWEPT: set[Path] = set()


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """Within, write to the path that comes, a file beside `path`; after it, that one has the name and mode.

    An error within leaves `path` as it was. A link keeps its target. durable: what was written is on the disk
    when this ends. Raises what the file system raises.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a plain file", str(path))
    _sweep(target.parent)
    partial = target.with_name(_new_name())
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield partial
        if durable:
            to_disk(partial)
        give_name(partial, target, durable)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def give_name(partial: Path, target: Path, durable: bool) -> None:
    """The name, and the mode of a file that has it."""
    if target.exists():
        partial.chmod(target.stat().st_mode & 0o7777)
    partial.replace(target)
    if durable and os.name == "posix":
        to_disk(target.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Within, write to the folder that comes, beside `path`; after it, that one has the name.

    An error within leaves `path` as it was. Raises what the file system raises.
    """
    if path.exists() and not path.is_dir():
        raise OSError(errno.ENOTDIR, "is no folder", str(path))
    target = Path(os.path.realpath(path))
    with folder_beside(target) as beside:
        partial, before = beside / "new", beside / "old"
        partial.mkdir()
        yield partial
        if target.exists():
            target.replace(before)
        try:
            partial.replace(target)
        except OSError:
            if before.exists():
                before.replace(target)
            raise


@contextmanager
def folder_beside(partial: Path) -> Iterator[Path]:
    """A folder for a library that writes to files whose names it makes up; gone afterwards with them."""
    _sweep(partial.parent)
    folder = partial.with_name(_new_name())
    folder.mkdir(0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """`remove_stale` of a folder, once in a process."""
    if folder not in _SWEPT:
        _SWEPT.add(folder)
        remove_stale([folder])


def remove_stale(folders: Iterable[Path]) -> None:
    """Remove what processes which were killed have left beside the files of these folders.

    That is what has not changed for `STALE_S`.
    """
    for path in (path for folder in folders for path in folder.glob(PARTIAL.format("*"))):
        with contextlib.suppress(OSError):
            if newest_change(path) >= time.time() - STALE_S:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def newest_change(path: Path) -> float:
    """When a file, or a folder or what is in it, was last changed."""
    within = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(float(each.lstat().st_mtime) for each in (path, *within))


def _new_name() -> str:
    return PARTIAL.format(secrets.token_hex(8))


def to_disk(path: Path) -> None:
    """Have the system write what it holds of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
