"""A file mapped read-only into memory, with one way to look at it and one way to let go.

Or the first bytes of a file that is elsewhere. Knows nothing of what the file holds.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphml.errors import WeightsError
from graphml.pages import let_go

Bytes = NDArray[np.uint8]


class FileMap:
    """The bytes of one file as a read-only uint8 array on a memory map; WeightsError where that fails.

    Whoever writes to the file changes these bytes. Whoever cuts it off takes them away, and reading what is
    gone ends the process (SIGBUS): `check_unchanged` tells in time, unless it happens while they are read.
    """

    _descriptor: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._view: Bytes | None = None
        self._map: mmap.mmap | None = None
        try:
            # A pipe or a device would block or never end, so only plain files are opened.
            if not path.is_file():
                what = (
                    "is a folder"
                    if path.is_dir()
                    else "is not a plain file"
                    if path.exists()
                    else "is not there"
                )
                raise WeightsError(f"{path}: wanted a model file, but it {what}")
            with path.open("rb") as file:
                self._watch(os.dup(file.fileno()))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # mmap's way to say that the file is empty
            raise WeightsError(f"{path}: wanted a model file, but it is empty") from error
        except OSError as error:
            what = "cannot be opened"
            if error.errno == errno.ENOMEM:
                what = f"{path.stat().st_size:,} bytes cannot be mapped, a limit on address space is too low"
            raise WeightsError(f"{path}: {what}: {error.strerror or error}") from error
        self._view = np.frombuffer(self._map, np.uint8)
        self.n_bytes = self._view.nbytes

    @classmethod
    def of_header(cls, path: Path, header: bytes, n_bytes: int) -> FileMap:
        """The first bytes of a file of `n_bytes` that is elsewhere; `path` is its name in errors."""
        made = cls.__new__(cls)
        made.path, made.n_bytes, made._map = path, n_bytes, None
        made._view = np.frombuffer(header, np.uint8)
        return made

    @property
    def is_whole(self) -> bool:
        """Whether every byte of the file is here, and not its first ones alone."""
        return self._map is not None

    @property
    def data(self) -> Bytes:
        """The bytes that are here, uint8 [n_bytes] of a whole file, read-only; WeightsError after `close`."""
        if self._view is None:
            raise WeightsError(f"{self.path}: the file was closed, its values can no longer be read")
        return self._view

    def _watch(self, descriptor: int) -> None:
        """Remember the file as it is now, by a descriptor of its own: another file may get its name."""
        self._descriptor = descriptor
        self._let_descriptor_go = weakref.finalize(self, os.close, descriptor)
        self._as_opened = _identity(descriptor)

    def check_unchanged(self) -> None:
        """WeightsError where the file was written to or cut off since it was opened."""
        if self._descriptor is None:
            return
        try:
            now = _identity(self._descriptor)
        except OSError as error:  # of a network
            raise WeightsError(f"{self.path}: can no longer be read: {error.strerror or error}") from error
        if now != self._as_opened:
            was = self._as_opened
            raise WeightsError(
                f"{self.path}: the file was changed while it was in use: {was[0]:,} bytes, written at "
                f"{_time(was[1])}, are now {now[0]:,} bytes, written at {_time(now[1])}. Load the model "
                "again; with pages='copy' weights are read once"
            )

    def will_need(self, large: bool = False) -> None:
        """Ask the system to read the whole file ahead (madvise WILLNEED); nothing where that is unknown.

        large: into large pages, if the file system has them: what of it is in memory goes first, and is read
        again.
        """
        if self._view is None or self._map is None or not hasattr(self._map, "madvise"):
            return
        if large:
            with contextlib.suppress(OSError), self.path.open("rb") as file:  # it may have been moved
                let_go(file.fileno())
        if large and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(OSError):  # it is advice only
            self._map.madvise(mmap.MADV_WILLNEED)

    def forget_pages(self) -> None:
        """Take the pages that were read out of the process (madvise DONTNEED); reading brings them back."""
        if self._view is not None and self._map is not None and hasattr(self._map, "madvise"):
            with contextlib.suppress(OSError):  # pages that are locked stay
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let the map go; where tensors of it are still in use, it goes with the last of them."""
        self._view = None
        if self._descriptor is not None:
            self._descriptor = None
            self._let_descriptor_go()
        with contextlib.suppress(BufferError):  # arrays still look at the map: they keep it alive and valid
            if self._map is not None:
                self._map.close()


def _identity(descriptor: int) -> tuple[int, int]:
    """Size and time of change, in nanoseconds, of an open file."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _time(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(nanoseconds / 1e9))
