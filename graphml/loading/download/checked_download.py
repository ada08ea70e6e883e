"""A file of the hub in the cache folder: checks its version, and downloads it.

The file appears under its name only when it is complete and its sha256 is right. An interrupted download is
resumed; concurrent callers, in any process, wait for one another.
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

from graphml import settings
from graphml.errors import DownloadError
from graphml.loading.download.callers_progress import with_progress
from graphml.loading.download.folders import LOCK, PARTIAL, hub_folder, partial_folder, sum_path
from graphml.loading.download.http_ranges import WebFile, read_range
from graphml.loading.download.lock import locked
from graphml.system import cache_access
from graphml.system.pages import let_go

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class HubFile:
    """A file in the hub's listing.

    version: changes with the file's bytes: their sha256 if the hub lists it, else git's hash.
    """

    repo: str
    name: str
    web: WebFile
    sha256: str | None
    version: str

    @property
    def path(self) -> Path:
        """The path of the complete file."""
        return hub_folder(self.repo) / self.name

    @property
    def sum_path(self) -> Path:
        """The note beside the file that records its version."""
        return sum_path(self.path)

    @property
    def lock_path(self) -> Path:
        """The lock file that a process holds while it writes the file."""
        return partial_folder() / "hub" / self.repo / f"{self.name}{LOCK}"

    @property
    def partial_path(self) -> Path:
        """The path of the partial download, which has the version in its name: versions are never mixed."""
        mark = re.sub(r"[^0-9a-zA-Z]", "", self.version)[:16]
        return self.lock_path.with_name(f"{self.path.name}.{mark}{PARTIAL}")


def is_current(file: HubFile) -> bool:
    """Whether the local file has the hub's version."""
    try:
        if file.path.stat().st_size != file.web.n_bytes:
            return False
        if file.sum_path.is_file():
            return file.sum_path.read_text(encoding="ascii", errors="replace") == file.version
        if file.sha256 is None:
            return False
        with file.path.open("rb") as held:  # downloaded before there were notes
            if _digest(held).hexdigest() != file.sha256:
                return False
    except OSError:  # missing, or not readable
        return False
    with contextlib.suppress(OSError):  # a cache that cannot be written can be read
        file.sum_path.write_text(file.version, encoding="ascii")
    return True


def bring(file: HubFile, progress: Callable[[int], None]) -> None:
    """Download the file unless it is current; progress is called with the bytes downloaded so far.

    Raises DownloadError for wrong bytes, for a cache that cannot be written, and like `read_range`;
    an error of `progress` comes out unchanged.
    """
    with_progress(lambda guarded: _bring(file, guarded), progress)


def _bring(file: HubFile, progress: Callable[[int], None]) -> None:
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
    """Remove partial downloads of other versions; the lock guarantees that no other process writes them."""
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
        for chunk in read_range(file.web, done, size):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(done)
        out.flush()
        os.fsync(out.fileno())
        let_go(out.fileno())
    came = digest.hexdigest()
    if file.sha256 is not None and came != file.sha256:
        part.unlink()
        raise DownloadError(f"wanted {size} bytes with sha256 {file.sha256}, got {came}")
    file.sum_path.unlink(missing_ok=True)  # a stale note would belong to the new file after a crash here
    part.replace(file.path)
    file.sum_path.write_text(file.version, encoding="ascii")


def _digest(file: IO[bytes]) -> hashlib._Hash:
    """The sha256 of the rest of a file, so far."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest
