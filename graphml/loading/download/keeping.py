"""A file of the hub in our cache folder: whether it is the right one, and how it gets there.

It appears under its name only when it is whole and of the right sha256. What an interrupted call got is taken
up again; callers at the same time, in any process, wait for one another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import IO

from graphml import cache_access, settings
from graphml.errors import DownloadError
from graphml.loading.download.folders import LOCK, PARTIAL, hub_folder, partial_folder, sum_path
from graphml.loading.download.http_ranges import WebFile, read_range
from graphml.loading.download.lock import locked
from graphml.pages import let_go

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it.

    version: what changes with its bytes: their sha256 where the hub tells it, else git's name of them.
    """

    repo: str
    name: str
    web: WebFile
    sha256: str | None
    version: str

    @property
    def path(self) -> Path:
        """Where it is when it is whole."""
        return hub_folder(self.repo) / self.name

    @property
    def sum_path(self) -> Path:
        """A note beside it of the version that it is."""
        return sum_path(self.path)

    @property
    def lock_path(self) -> Path:
        """What a process holds that writes it."""
        return partial_folder() / "hub" / self.repo / f"{self.name}{LOCK}"

    @property
    def partial_path(self) -> Path:
        """Where it is while it is not whole, by its version: bytes of two versions never meet."""
        mark = re.sub(r"[^0-9a-zA-Z]", "", self.version)[:16]
        return self.lock_path.with_name(f"{self.path.name}.{mark}{PARTIAL}")


def is_current(file: HubFile) -> bool:
    """Whether the file is here in the version that the hub has."""
    try:
        if file.path.stat().st_size != file.web.n_bytes:
            return False
        if file.sum_path.is_file():
            return file.sum_path.read_text(encoding="ascii", errors="replace") == file.version
        if file.sha256 is None:
            return False
        with file.path.open("rb") as held:  # from before there were notes
            if _digest(held).hexdigest() != file.sha256:
                return False
    except OSError:  # it is not there, or not for us
        return False
    with contextlib.suppress(OSError):  # a cache that cannot be written can be read
        file.sum_path.write_text(file.version, encoding="ascii")
    return True


def bring(file: HubFile, progress: Callable[[int], None]) -> None:
    """Download the file unless it is current; progress gets the bytes of it that are here.

    Raises DownloadError for wrong bytes, a cache that cannot be written, and as `read_range`.
    """
    try:
        for folder in (file.path.parent, file.partial_path.parent):
            cache_access.make(folder)
        with locked(file.lock_path):
            if not is_current(file):
                _sweep(file)
                _bring_locked(file, progress)
    except OSError as error:
        raise DownloadError(f"cannot write to {settings.cache_folder()}: {error}") from error


def _sweep(file: HubFile) -> None:
    """Remove what was downloaded of other versions; the lock says that no other is at work."""
    for other in file.lock_path.parent.glob(f"{escape(file.path.name)}.*{PARTIAL}"):
        if other != file.partial_path:
            other.unlink(missing_ok=True)


def _bring_locked(file: HubFile, progress: Callable[[int], None]) -> None:
    part, size = file.partial_path, file.web.n_bytes
    with part.open("a+b") as out:
        if out.tell() > size:
            out.truncate(0)
        out.seek(0)
        digest, done = _digest(out), out.tell()
        free = shutil.disk_usage(part.parent).free
        if size - done > free:
            raise DownloadError(
                f"wanted {size - done} bytes more on the disk of {settings.cache_folder()}, "
                f"where {free} are free"
            )
        progress(done)
        for piece in read_range(file.web, done, size):
            out.write(piece)
            digest.update(piece)
            done += len(piece)
            progress(done)
        out.flush()
        os.fsync(out.fileno())
        let_go(out.fileno())
    came = digest.hexdigest()
    if file.sha256 is not None and came != file.sha256:
        part.unlink()
        raise DownloadError(f"wanted {size} bytes with sha256 {file.sha256}, got {came}")
    file.sum_path.unlink(missing_ok=True)  # else it would be taken for the old file's if we end here
    part.replace(file.path)
    file.sum_path.write_text(file.version, encoding="ascii")


def _digest(file: IO[bytes]) -> hashlib._Hash:
    """The sha256 of the rest of a file, so far."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest
