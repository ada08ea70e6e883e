"""Writes GGUF, version 3, little endian: typed metadata, then tensors whose data comes piece by piece.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows types and bytes; nothing of the
meaning of keys, except `general.alignment`, which is left out: data is aligned to 32 bytes.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import graphml_quant
import numpy as np

from graphml.errors import UsageError, WeightsError
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.system.unfinished_work import mark_done, read_done
from graphml.weights.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, STRING
from graphml.weights.metadata import Metadata, StoredValue
from graphml.weights.tensor import PLAIN_DTYPES, PLAIN_TYPES, type_named

ALIGNMENT = "general.alignment"
NOTED_S = 2.0
"""Seconds after which it is noted which tensors are on the disk, behind the next one."""
Noted = Callable[[int, int], None]
_VERSION = 3
_CODES = {name: (code, dtype) for code, (name, dtype) in NUMBERS.items()}
_PLAIN = {name: number for number, name in PLAIN_TYPES.items()}
_OF_ARRAYS = {np.dtype(of): name for name, of in {"f32": "<f4", "f16": "<f2", **PLAIN_DTYPES}.items()}


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written: its dtype as `Tensor` has it, and its NumPy shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of its data."""
        kind = type_named(self.dtype)
        return int(np.prod(self.shape, dtype=np.int64)) // kind.block_elements * kind.block_bytes


class GgufFile:
    """A file that is being written: its tensors' data, in their order.

    n_done: how many of them are there already. noted: called as noted(tensors, bytes) with what is there.
    """

    def __init__(
        self, file: BinaryIO, tensors: Sequence[TensorPlan], n_done: int = 0, noted: Noted | None = None
    ) -> None:
        self._file, self._left = file, list(reversed(tensors[n_done:]))
        self.n_done, self._noted, self._noted_at = n_done, noted, time.monotonic()

    def add(self, pieces: Iterable[Any]) -> None:
        """All data of the next tensor, in pieces of bytes or arrays that add up to its length."""
        plan = self._left.pop()
        size = 0
        for piece in pieces:
            size += self._file.write(memoryview(piece).cast("B"))
        if size != plan.n_bytes:
            raise WeightsError(f"{plan.name}: wanted {plan.n_bytes} bytes of data; got {size}")
        self._file.write(bytes(-size % DEFAULT_ALIGNMENT))
        self.n_done += 1
        if time.monotonic() - self._noted_at >= NOTED_S:
            self._note()

    def _note(self) -> None:
        if self._noted is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._noted(self.n_done, self._file.tell())
        self._noted_at = time.monotonic()

    def finish(self) -> None:
        """Nothing is missing."""
        if self._left:
            raise WeightsError(f"{self._left[-1].name}: its data was not written")
        self._note()


@contextmanager
def writing_gguf(
    path: Path, values: Mapping[str, StoredValue], tensors: Sequence[TensorPlan]
) -> Iterator[GgufFile]:
    """Within, add the tensors' data; after it the file is there, whole, or what was there before.

    A UsageError where it cannot be written; the head is written at once.
    """
    try:
        with replacing(path) as partial, _written(partial, values, tensors) as written:
            yield written
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {reason(error)}") from None


@contextmanager
def continued_gguf(
    path: Path, values: Mapping[str, StoredValue], tensors: Sequence[TensorPlan]
) -> Iterator[GgufFile]:
    """As of `writing_gguf`, of a file that a killed process may have begun, in a folder of `unfinished_work`.

    It has its name at once. Tensors that were noted to be on the disk are kept: `n_done` of the file that
    comes. OSError where it cannot be written.
    """
    head = _head(values, tensors)
    n_done, n_bytes = read_done(path)
    sizes = [plan.n_bytes + -plan.n_bytes % DEFAULT_ALIGNMENT for plan in tensors[:n_done]]
    goes_on = n_done and n_bytes == len(head) + sum(sizes) and _begins_with(path, head)
    with path.open("r+b" if goes_on else "wb") as file:
        if goes_on:
            file.seek(n_bytes)
            file.truncate()
        else:
            file.write(head)
        written = GgufFile(file, tensors, n_done if goes_on else 0, partial(mark_done, path))
        yield written
        written.finish()


def _begins_with(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


def write_parts(
    paths: Sequence[Path],
    heads: Sequence[Mapping[str, StoredValue]],
    parts: Sequence[Sequence[TensorPlan]],
    data: Callable[[TensorPlan], Iterable[Any]],
    added: Callable[[TensorPlan], None],
) -> None:
    """Write the files of a model in a folder of `unfinished_work`, each with its keys and tensors.

    data: called with a tensor that is not there yet, gives all its data in pieces. added: called when they
    are written. OSError where a file cannot be written.
    """
    for path, values, tensors in zip(paths, heads, parts, strict=True):
        with continued_gguf(path, values, tensors) as written:
            for plan in tensors[written.n_done :]:
                written.add(data(plan))
                added(plan)


def write_arrays(path: Path, values: Mapping[str, StoredValue], arrays: Iterable[tuple[str, Any]]) -> None:
    """Write a file of arrays in memory, in their own types, at once. OSError where it cannot be written."""
    whole = [(name, np.ascontiguousarray(array)) for name, array in arrays]
    plans = [TensorPlan(name, _OF_ARRAYS[array.dtype], array.shape) for name, array in whole]
    with _written(path, values, plans) as written:
        for _, array in whole:
            written.add([array])


@contextmanager
def _written(
    path: Path, values: Mapping[str, StoredValue], tensors: Sequence[TensorPlan]
) -> Iterator[GgufFile]:
    with path.open("wb") as file:
        file.write(_head(values, tensors))
        written = GgufFile(file, tensors)
        yield written
        written.finish()


def stored_values(metadata: Metadata) -> dict[str, StoredValue]:
    """All of a file's values with their types, to be written again."""
    values = {}
    for key in metadata:
        kind, count, _ = metadata.beginning(key, 0)
        values[key] = StoredValue(kind, count, partial(_whole, metadata, key))
    return values


def _whole(metadata: Metadata, key: str, limit: int | None) -> Any:
    return metadata[key]


def _head(values: Mapping[str, StoredValue], tensors: Sequence[TensorPlan]) -> bytes:
    kept = {key: value for key, value in values.items() if key != ALIGNMENT}
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(kept))]
    for key, value in kept.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for plan in tensors:
        shape = tuple(reversed(plan.shape)) or (1,)
        parts.append(_text(plan.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", _number(plan.dtype), offset))
        offset += plan.n_bytes + -plan.n_bytes % DEFAULT_ALIGNMENT
    head = b"".join(parts)
    return head + bytes(-len(head) % DEFAULT_ALIGNMENT)


def _number(dtype: str) -> int:
    """ggml's number of a type."""
    return _PLAIN[dtype] if dtype in _PLAIN else graphml_quant.by_name(dtype).ggml_type


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: StoredValue) -> bytes:
    content = value.read(None)
    code, dtype = _CODES.get(value.type, (STRING, ""))
    if value.count is None:
        return struct.pack("<I", code) + (_text(content) if code == STRING else _numbers([content], dtype))
    head = struct.pack("<IIQ", ARRAY, code, value.count)
    return head + (b"".join(map(_text, content)) if code == STRING else _numbers(content, dtype))


def _numbers(content: Sequence[Any], dtype: str) -> bytes:
    return np.asarray(content, np.dtype(dtype)).tobytes()
