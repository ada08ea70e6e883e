"""One guard around every reader of a file: what a damaged or hostile file raises is our error with its name.

Files are read as plain files of a bounded size: a pipe or a device would block or never end. Knows
exceptions, bytes and JSON; nothing of what a file means.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphml.errors import GraphmlError, UsageError

MOST_BYTES = 64 << 20
_CHUNK = 1 << 20
CANNOT = "cannot be read"
LONGEST_TEXT = 1500  # characters of an error
LONGEST = 240  # characters of a reason: a file may make it a megabyte
DESCRIPTORS = ("/dev/fd", "/proc/self/fd")
"""Folders of pipes that this process was started with, as `<(command)` of a shell names them."""


@contextmanager
def guarded(path: Path, kind: type[GraphmlError], what: str = CANNOT) -> Iterator[None]:
    """Within, any exception becomes an error of `kind`: the file's name, `what`, the reason.

    An error of graphml keeps its kind, and gets the name where its text names no file of the folder; one of
    an argument (UsageError, where `kind` is another) stays as it is.
    Overflow, division by zero and invalid operations of NumPy are exceptions too, not warnings.
    """
    name = shown(path)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except GraphmlError as error:
        text = str(error)
        of_argument = isinstance(error, UsageError) and not issubclass(kind, UsageError)
        named = of_argument or name in text or f"{path.parent}{os.sep}" in text
        if named and len(text) <= LONGEST_TEXT:
            raise
        text = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
        raise type(error)(text if named else f"{name}: {text}") from error
    except Exception as error:  # zip files, decompressors, tokenizers and families fail in many ways
        raise kind(f"{name}: {what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What an exception says, in a bounded line; with its type where the text alone would not tell."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if not isinstance(error, OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:LONGEST]


def shown(path: Path) -> str:
    """A file's name in an error; quoted where it has characters that cannot be printed."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def plain_bytes(path: Path, kind: type[GraphmlError], most: int = MOST_BYTES, what: str = CANNOT) -> bytes:
    """The bytes of a plain file of at most `most` bytes, or of a pipe that this process was started with."""
    with guarded(path, kind, what):
        inherited = str(path.parent) in DESCRIPTORS or str(path) in ("/dev/stdin", os.devnull)
        waits = 0 if inherited else getattr(os, "O_NONBLOCK", 0)  # opening a pipe waits for a writer
        descriptor = os.open(path, os.O_RDONLY | waits | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not inherited and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("wanted a plain file")
            content = b"".join(_chunks(file, most))
        if len(content) > most:
            raise ValueError(f"it is larger than {_size(most)}")
        return content


def plain_text(path: Path, kind: type[GraphmlError], most: int = MOST_BYTES, what: str = CANNOT) -> str:
    """The UTF-8 text of such a file, with every kind of line end as a line feed, no byte order mark."""
    content = plain_bytes(path, kind, most, what)
    with guarded(path, kind, what):
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def plain_json(path: Path, kind: type[GraphmlError], most: int = MOST_BYTES, what: str = CANNOT) -> Any:
    """The JSON value of such a file."""
    text = plain_text(path, kind, most, what)
    with guarded(path, kind, what):
        return json.loads(text)


def _chunks(file: IO[bytes], most: int) -> Iterator[bytes]:
    """What a file has, until it is more than `most` bytes: to ask for all at once would take their memory."""
    n_bytes = 0
    while n_bytes <= most and (chunk := file.read(_CHUNK)):
        n_bytes += len(chunk)
        yield chunk


def _size(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MiB" if n_bytes >> 20 else f"{n_bytes} bytes"
