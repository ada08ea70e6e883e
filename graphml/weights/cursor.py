"""A reading position in a mapped file that checks every step against the file's end.

Knows the scalars of GGUF headers; nothing of their order or meaning.
"""

from __future__ import annotations

import struct

from graphml.errors import WeightsError
from graphml.weights.filemap import FileMap

MAX_STRINGS = 1 << 24  # array elements in one file: far above any vocabulary, scanned in seconds


class HeaderEndsError(Exception):
    """The header continues after the bytes that were read: the first `n_bytes` of the file are needed."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class Cursor:
    """A reading position in the file; every read is checked against the end.

    If only the first bytes of the file were read, a read beyond them raises `HeaderEndsError`.
    """

    def __init__(self, file: FileMap) -> None:
        self.file = file
        self.data = file.data
        self.size = file.n_bytes
        self.buffer = file.data.data
        self.position = 0
        self.length_bytes = 8  # of counts, string lengths and dimensions; 4 in version 1
        self.strings_left = MAX_STRINGS

    def error(self, where: str, text: str) -> WeightsError:
        """Make the error for this file; `where` names the key or tensor."""
        return WeightsError(f"{self.file.path}: {where}: {text}")

    def skip(self, n_bytes: int, where: str) -> int:
        """Move over `n_bytes` and return where they start."""
        start, left = self.position, self.size - self.position
        if n_bytes > left:
            raise self.error(
                where, f"{n_bytes} bytes wanted at byte {start}, but the file ends after {left}: truncated"
            )
        if start + n_bytes > len(self.data):
            raise HeaderEndsError(start + n_bytes)
        self.position = start + n_bytes
        return start

    def integer(self, layout: str, where: str) -> int:
        """Read one number of the struct layout "<I" or "<Q"."""
        start = self.skip(4 if layout == "<I" else 8, where)
        return int(struct.unpack_from(layout, self.buffer, start)[0])

    def length(self, where: str) -> int:
        """Read a count, a string length or a dimension: 64 bits, 32 in version 1."""
        return self.integer("<Q" if self.length_bytes == 8 else "<I", where)

    def string(self, where: str, limit: int) -> str:
        """Read a string of at most `limit` bytes, strictly UTF-8."""
        n_bytes = self.length(where)
        if n_bytes > limit:
            raise self.error(where, f"a string of {n_bytes} bytes, at most {limit} are allowed")
        start = self.skip(n_bytes, where)
        return utf8(self.file, start, start + n_bytes, where)


def utf8(file: FileMap, start: int, stop: int, where: str) -> str:
    """Decode the bytes from `start` to `stop`; a WeightsError names `where` if they are not UTF-8."""
    try:
        return file.data[start:stop].tobytes().decode()
    except UnicodeDecodeError as error:
        raise WeightsError(
            f"{file.path}: {where}: not UTF-8: {error.reason} at byte {start + error.start}"
        ) from error


def quoted(name: str) -> str:
    """Show a name from the file in an error: escaped, and short even if the name is hostile."""
    return repr(name if len(name) <= 100 else name[:100] + "...")
