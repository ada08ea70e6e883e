"""Named arrays in an .npz file, with checks of untrusted files: an invalid file is one clear error."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile

from graphml.errors import GraphmlError, UsageError
from graphml.ir.op import Array
from graphml.system.read_files import guarded

HEADER = "header"
LARGEST_HEADER_BYTES = 64 << 20
LARGEST_BYTES = 16 << 30


def write(path: Path, header: Any, arrays: dict[str, Array]) -> None:
    """Write arrays and a header of JSON values."""
    held = {**arrays, HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    with path.open("wb") as file:
        np.savez_compressed(file, **held)  # type: ignore[arg-type]  # its stub lists the keywords


def read(path: Path, what: str) -> tuple[Any, dict[str, Array]]:
    """The header and the arrays; a UsageError for any other file, which names `what` was wanted."""
    what = f"cannot be read as {what}"
    arrays = arrays_of(path, UsageError, what)
    with guarded(path, UsageError, what):
        return json.loads(arrays.pop(HEADER).tobytes()), arrays


def arrays_of(
    path: Path, kind: type[GraphmlError], what: str, names: Sequence[str] | None = None
) -> dict[str, Array]:
    """The arrays of an .npz file, all or those of these names; an error of `kind` for any other file."""
    with _opened(path, kind, what) as held:
        return {name: held[name] for name in (held.files if names is None else names)}


def names_in(path: Path, kind: type[GraphmlError], what: str) -> list[str]:
    """The names of the arrays of an .npz file; an error of `kind` for any other file."""
    with _opened(path, kind, what) as held:
        return list(held.files)


@contextmanager
def _opened(path: Path, kind: type[GraphmlError], what: str) -> Iterator[NpzFile]:
    with guarded(path, kind, what):
        if not path.is_file():  # a pipe would block
            raise OSError("wanted a plain file" if path.exists() else "no such file")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            if not isinstance(held, NpzFile) or held.zip is None:
                raise ValueError("wanted an archive of arrays; got one array")
            _check_sizes(held.zip)
            yield held


def _check_sizes(archive: zipfile.ZipFile) -> None:
    """Check before reading that no array is larger than its member of the file, nor all of them too large."""
    members = archive.infolist()
    if sum(member.file_size for member in members) > LARGEST_BYTES:
        raise ValueError(f"its arrays take more than {LARGEST_BYTES >> 30} GiB")
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} is compressed in another way than NumPy does")
        with archive.open(member) as stream:
            if npy.read_magic(stream) != (1, 0):
                raise ValueError(f"{member.filename} is no array of format 1.0")
            shape, _, kind = npy.read_array_header_1_0(stream)
        limit = LARGEST_HEADER_BYTES if member.filename == f"{HEADER}.npy" else member.file_size
        if prod(shape) * kind.itemsize > min(limit, member.file_size):
            raise ValueError(f"{member.filename} is said to be {kind}{list(shape)}")
