"""A file mapped read-only into memory, or the first bytes of a remote file.

Knows nothing of the file's contents.
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
from graphml.system.pages import let_go

Bytes = NDArray[np.uint8]


class FileMap:
    """The bytes of one file as a read-only uint8 array on a memory map; WeightsError if that fails.

    A write to the file changes these bytes. Truncation removes them, and reading removed bytes ends the
    process (SIGBUS): `check_unchanged` detects it before, unless it happens while they are read.
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
        except ValueError as error:  # mmap's error for an empty file
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
        """The first bytes of a remote file of `n_bytes`; `path` is its name in errors."""
        file = cls.__new__(cls)
        file.path, file.n_bytes, file._map = path, n_bytes, None
        file._view = np.frombuffer(header, np.uint8)
        return file

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the file are available, not only the first."""
        return self._map is not None

    @property
    def data(self) -> Bytes:
        """The available bytes, uint8 [n_bytes] for a whole file, read-only; WeightsError after `close`."""
        if self._view is None:
            raise WeightsError(f"{self.path}: the file was closed, its values can no longer be read")
        return self._view

    def _watch(self, descriptor: int) -> None:
        """Record the file's present state, by a descriptor of its own: another file may get its name."""
        self._descriptor = descriptor
        self._let_descriptor_go = weakref.finalize(self, os.close, descriptor)
        self._as_opened = _identity(descriptor)

    def check_unchanged(self) -> None:
        """Raise a WeightsError if the file was written to or truncated since it was opened."""
        if self._descriptor is None:
            return
        try:
            now = _identity(self._descriptor)
        except OSError as error:  # of a network file system
            raise WeightsError(f"{self.path}: can no longer be read: {error.strerror or error}") from error
        if now != self._as_opened:
            was = self._as_opened
            raise WeightsError(
                f"{self.path}: the file was changed while it was in use: {was[0]:,} bytes, written at "
                f"{_time(was[1])}, are now {now[0]:,} bytes, written at {_time(now[1])}. Load the model "
                "again; with pages='copy' weights are read once"
            )

    def will_need(self, large: bool = False) -> None:
        """Ask the system to read the whole file ahead (madvise WILLNEED), if it supports that.

        large: into large pages, if the file system supports them: pages in memory are dropped first and read
        again.
        """
        if self._view is None or self._map is None or not hasattr(self._map, "madvise"):
            return
        if large:
            with contextlib.suppress(OSError), self.path.open("rb") as file:  # it may have been moved
                let_go(file.fileno())
        if large and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(OSError):  # it is advice only
            self._map.madvise(mmap.MADV_WILLNEED)

    def forget_pages(self) -> None:
        """Drop the process's pages of the file (madvise DONTNEED); they are read again on access."""
        if self._view is not None and self._map is not None and hasattr(self._map, "madvise"):
            with contextlib.suppress(OSError):  # pages that are locked stay
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Release the map; if tensors of it are still in use, it is released with the last of them."""
        self._view = None
        if self._descriptor is not None:
            self._descriptor = None
            self._let_descriptor_go()
        with contextlib.suppress(BufferError):  # arrays still use the map and keep it valid
            if self._map is not None:
                self._map.close()


def _identity(descriptor: int) -> tuple[int, int]:
    """Size and time of change, in nanoseconds, of an open file."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _time(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(nanoseconds / 1e9))
