"""Writes GGUF, version 3, little endian: typed metadata, then tensors whose data comes piece by piece.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows types and bytes; nothing of the
meaning of keys, except `general.alignment`, which is left out: data is aligned to 32 bytes.
"""

from __future__ import annotations

import struct
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
from graphml.system.replaced_file import replacing, replacing_together
from graphml.weights.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, STRING
from graphml.weights.metadata import Metadata, StoredValue
from graphml.weights.tensor import PLAIN_DTYPES, PLAIN_TYPES, type_named

ALIGNMENT = "general.alignment"
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
    """A file that is being written: its tensors' data, in their order."""

    def __init__(self, file: BinaryIO, tensors: Sequence[TensorPlan]) -> None:
        self._file, self._left = file, list(reversed(tensors))

    def add(self, pieces: Iterable[Any]) -> None:
        """All data of the next tensor, in pieces of bytes or arrays that add up to its length."""
        plan = self._left.pop()
        size = 0
        for piece in pieces:
            size += self._file.write(memoryview(piece).cast("B"))
        if size != plan.n_bytes:
            raise WeightsError(f"{plan.name}: wanted {plan.n_bytes} bytes of data; got {size}")
        self._file.write(bytes(-size % DEFAULT_ALIGNMENT))

    def finish(self) -> None:
        """Nothing is missing."""
        if self._left:
            raise WeightsError(f"{self._left[-1].name}: its data was not written")


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


def write_parts(
    paths: Sequence[Path],
    heads: Sequence[Mapping[str, StoredValue]],
    parts: Sequence[Sequence[TensorPlan]],
    data: Callable[[TensorPlan], Iterable[Any]],
    output: Path,
) -> None:
    """Write the files of a model in parts, each with its keys and tensors; all get their names, or none.

    data: all data of a tensor, in pieces. UsageError, which names `output`, where a file cannot be written.
    """
    try:
        with replacing_together(paths) as partials:
            for partial, values, tensors in zip(partials, heads, parts, strict=True):
                with _written(partial, values, tensors) as written:
                    for plan in tensors:
                        written.add(data(plan))
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}") from None


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
