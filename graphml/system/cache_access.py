"""Folders below the cache folder: how they are made, and which of them may hold code that is run.

Code is loaded only from folders and files that this user owns and nobody else can write. Knows owners and
permission bits, and nothing of what the files hold. Windows has no such bits: the cache folder is in the
user's profile there, which the system closes to others, and every folder passes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from graphml import settings

LOG = logging.getLogger(__name__)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_told: set[Path] = set()


def make(folder: Path, mode: int = 0o755) -> None:
    """Make a folder and those above it that are not there; nobody else may write in what is made."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(mode, exist_ok=True)


def make_private(folder: Path) -> None:
    """Make a folder for code, below the cache folder: nobody else may even read there (mode 0700)."""
    for place in list(_down_to(folder))[1:]:
        make(place, 0o700)
        if stat.S_IMODE(place.stat().st_mode) != 0o700:
            place.chmod(0o700)


def is_private(folder: Path, purpose: str) -> bool:
    """Whether code may be loaded from this folder and kept there; what is not there yet is no obstacle.

    `purpose` begins the warning that is logged (on stderr, if nobody takes logs), once for each folder.
    """
    for place in _down_to(folder):
        try:
            status = place.stat()
        except OSError:  # not there: made when needed; or not readable, which costs the caching only
            return True
        fault = _fault(place, status, may_be_root=place == settings.cache_folder())
        if fault:
            if place not in _told:
                _told.add(place)
                LOG.warning("%s: %s", purpose, fault)
            return False
    return True


def read_private(file: Path) -> bytes:
    """The content of a file with code; `PermissionError` where others own it or can write it."""
    with file.open("rb") as opened:
        fault = _fault(file, os.fstat(opened.fileno()))
        if fault:
            raise PermissionError(fault)
        return opened.read()


def _down_to(folder: Path) -> Iterator[Path]:
    """The cache folder, and each folder from it to this one."""
    root = settings.cache_folder()
    yield root
    for part in folder.relative_to(root).parts:
        root /= part
        yield root


def _fault(place: Path, status: os.stat_result, may_be_root: bool = False) -> str:
    """What is wrong with owner and mode, and what to do about it; empty if nothing is.

    may_be_root: the system's administrator may own it, and others may write there as in /tmp: what is mine
    stays mine (the sticky bit).
    """
    if sys.platform == "win32":
        return ""
    me = os.geteuid()
    if status.st_uid != me and not (may_be_root and status.st_uid == 0):
        return (
            f"{place} is owned by {_name(status.st_uid)}; wanted {_name(me)}. "
            "Set GRAPHML_CACHE to a folder of your own"
        )
    sticky = may_be_root and status.st_mode & stat.S_ISVTX
    if status.st_mode & _OTHERS_WRITE and not sticky:
        return (
            f"{place} has mode {stat.S_IMODE(status.st_mode):04o}, so others can write there; wanted 0700. "
            f"If you trust what is in it, run `chmod go-w {place}`; if not, remove it"
        )
    return ""


def _name(user: int) -> str:
    with contextlib.suppress(ImportError, KeyError):
        import pwd  # not on every system

        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    return f"user {user}"
