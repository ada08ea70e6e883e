"""Named arrays and a JSON object in one safetensors file, with hashes of all that it holds.

What is read is checked against its hash, and against the shape and dtype that the reader wants, before it is
handed out. Knows files and arrays; nothing of what they mean.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.system.closing import Closing
from graphml.system.read_files import guarded
from graphml.system.replaced_file import folder_beside, replacing

MAX_HEADER_BYTES = 1 << 24
ABOUT, DIGEST = "graphml", "sha256"
DTYPES = {
    "F32": "f4",
    "F16": "f2",
    "F64": "f8",
    "U8": "u1",
    "I8": "i1",
    "I16": "i2",
    "I32": "i4",
    "I64": "i8",
}


def write_tensors(
    path: Path, about: Mapping[str, Any], arrays: Mapping[str, Array], durable: bool = True
) -> None:
    """Write a file, or replace one that is there, whole or not at all. OSError where that fails.

    about: what JSON can hold. durable: it is on the disk when this returns.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    hashes = {name: _digest(array) for name, array in whole.items()}
    text = json.dumps({"about": about, "arrays": hashes})
    with replacing(path, durable) as partial, folder_beside(partial) as folder:
        made = folder / path.name
        try:
            save_file(whole, made, {ABOUT: text, DIGEST: hashlib.sha256(text.encode()).hexdigest()})
            made.replace(partial)
        except SafetensorError as error:  # the library's own, of a full disk too
            raise OSError(str(error)) from None


class TensorFile(Closing):
    """A file that is open to be read, in a `with`. about: what it says of itself.

    UsageError with the file's name for what cannot be read: another kind of file, a truncated or damaged one,
    lengths that do not fit it.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        with guarded(path, UsageError, "no whole safetensors file"):
            _check_lengths(path)
            opened: Any = safe_open
            self._file = opened(path, framework="np")
            said = self._file.metadata() or {}
        text = said.get(ABOUT)
        if text is None:
            raise UsageError(f"{path}: wanted a file that graphml has saved; it is of something else")
        if hashlib.sha256(text.encode()).hexdigest() != said.get(DIGEST):
            raise self._damaged("what it says of itself")
        with guarded(path, UsageError, "wanted a JSON object in its header"):
            found = json.loads(text)
            self.about: Mapping[str, Any] = dict(found["about"])
            self._hashes = dict(found["arrays"])
        self.names = frozenset(self._file.keys())

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        """An array of the file, of this shape (None: any size) and dtype."""
        with guarded(self.path, UsageError, f"array {name!r}"):
            return self._array(name, shape, dtype)

    def _array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        if name not in self.names:
            raise UsageError(f"{self.path}: wanted an array {name!r}; it has none")
        stored = self._file.get_slice(name)
        sizes, kind = tuple(stored.get_shape()), DTYPES.get(stored.get_dtype())
        fits = len(sizes) == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, sizes, strict=True)
        )
        if not fits or kind is None or np.dtype(kind) != np.dtype(dtype):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise UsageError(
                f"{self.path}: array {name!r}: wanted {np.dtype(dtype)} [{wanted}]; "
                f"got {stored.get_dtype()} {list(sizes)}"
            )
        found: Array = self._file.get_tensor(name)
        if _digest(found) != self._hashes.get(name):
            raise self._damaged(f"array {name!r}")
        return found

    def _damaged(self, what: str) -> UsageError:
        return UsageError(f"{self.path}: the file is damaged: {what} does not fit its hash")

    def close(self) -> None:
        """Read no more of it."""
        self._file = None


def _check_lengths(path: Path) -> None:
    """UsageError for what is no plain file, or has no room for the header that it announces."""
    if not path.is_file():  # a pipe would block
        raise UsageError(f"{path}: " + ("is not a plain file" if path.exists() else "no such file"))
    with path.open("rb") as file:
        size, head = path.stat().st_size, file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise UsageError(
            f"{path}: no whole safetensors file: a header of {length} bytes in a file of {size}, wanted at "
            f"most {MAX_HEADER_BYTES}"
        )


def _digest(array: Array) -> str:
    found = hashlib.sha256(repr((array.dtype.str, array.shape)).encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
