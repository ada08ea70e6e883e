"""Reads GGUF, versions 1 to 3, little endian: every length and offset is checked before it is used.

A value is stored as its offset in the map and decoded when it is read; a tensor is a view. For any bytes
opening takes bounded time and memory, and returns a file or raises one WeightsError that names the file and
the key or tensor. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows nothing of the
meaning of keys or tensors, except `general.alignment`, which places the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import graphml_quant
import numpy as np

from graphml.errors import WeightsError
from graphml.weights.cursor import MAX_STRINGS, Cursor, HeaderEndsError, quoted, utf8
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Metadata, StoredValue
from graphml.weights.strings import OutOfFileError, StringRun, string_runs
from graphml.weights.tensor import Tensor, TensorType, tensor_type

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Far above any model, and low enough to bound the time for a hostile file of many gigabytes.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = (1 << 16) - 1


@dataclass(frozen=True)
class TensorPlace:
    """The header's entry of a tensor; `offset` is from the start of the tensor data."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_part(file: FileMap) -> tuple[Metadata, dict[str, Tensor]]:
    """Read the header of one GGUF file: its metadata, and its tensors by name in file order."""
    cursor = Cursor(file)
    n_tensors, n_keys = _read_counts(cursor)
    values: dict[str, StoredValue] = {}
    for index in range(n_keys):
        key = cursor.string(f"key {index} of {n_keys}", MAX_NAME_BYTES)
        where = f"key {quoted(key)}"
        if not key or key in values:
            raise cursor.error(where, "appears twice" if key else "is empty")
        values[key] = read_value(cursor, where)
    metadata = Metadata(file.path, values)
    alignment = _alignment(cursor, metadata)
    places: dict[str, TensorPlace] = {}
    for index in range(n_tensors):
        place = _read_tensor(cursor, index, n_tensors, alignment)
        if place.name in places:
            raise cursor.error(f"tensor {quoted(place.name)}", "appears twice")
        places[place.name] = place
    return metadata, _tensors(cursor, list(places.values()), -cursor.position % alignment + cursor.position)


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    """Read magic, version and the counts of tensors and keys."""
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise cursor.error("header", f"wanted the magic bytes {MAGIC!r}, got {magic!r}")
    cursor.position = 4
    version = cursor.integer("<I", "version")
    if version & 0xFFFF == 0 and version:
        raise cursor.error(
            "version", "a big-endian GGUF file; wanted a little-endian one (gguf-convert-endian converts it)"
        )
    if version not in VERSIONS:
        raise cursor.error("version", f"GGUF version {version}, known are 1, 2 and 3")
    cursor.length_bytes = 4 if version == 1 else 8
    counts = []
    # The smallest tensor takes 24 + 8 bytes of header and the smallest key 13; in version 1 somewhat less.
    for what, limit, least in (("tensors", MAX_TENSORS, 24), ("keys", MAX_KEYS, 9)):
        count = cursor.length(f"number of {what}")
        fits = (cursor.size - cursor.position) // least
        if count > min(limit, fits):
            possible = f"{limit} are allowed" if fits > limit else f"{fits} fit into the rest of the file"
            raise cursor.error("header", f"{count} {what}, at most {possible}")
        counts.append(count)
    return counts[0], counts[1]


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    alignment = metadata.integer(key, DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1):
        raise cursor.error(f"key {key!r}", f"wanted a power of two from 8 up, got {alignment}")
    return alignment


def _read_tensor(cursor: Cursor, index: int, n_tensors: int, alignment: int) -> TensorPlace:
    name = cursor.string(f"name of tensor {index} of {n_tensors}", MAX_NAME_BYTES)
    where = f"tensor {quoted(name)}"
    n_dimensions = cursor.integer("<I", where)
    if not name or not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(
            where, f"{n_dimensions} dimensions, wanted 1 to {MAX_DIMENSIONS}" if name else "has no name"
        )
    extents = [cursor.length(where) for _ in range(n_dimensions)]
    number, offset = cursor.integer("<I", where), cursor.integer("<Q", where)
    try:
        kind = tensor_type(number)
    except graphml_quant.FormatError as error:
        raise cursor.error(where, str(error)) from error
    shape = tuple(reversed(extents))
    if 0 in shape or shape[-1] % kind.block_elements:
        raise cursor.error(
            where,
            f"shape {shape}: wanted no empty dimension and rows of whole blocks of {kind.block_elements} "
            f"({kind.name})",
        )
    n_bytes = (
        kind.block_bytes
    )  # Python's integers do not overflow; the sum is checked against the file's size
    for extent in (*shape[:-1], shape[-1] // kind.block_elements):
        n_bytes *= extent
    if offset % alignment:
        raise cursor.error(where, f"offset {offset} is not a multiple of the alignment {alignment}")
    return TensorPlace(name, kind, shape, offset, n_bytes)


def _tensors(cursor: Cursor, places: list[TensorPlace], start: int) -> dict[str, Tensor]:
    """Check that the tensors are within the file and disjoint, and make the views; the data begin at `start`.

    If only the header of the file was read, the views are empty.
    """
    size = cursor.size
    for place in places:
        end = start + place.offset + place.n_bytes
        if end > size:
            raise cursor.error(
                f"tensor {quoted(place.name)}",
                f"shape {place.shape} of {place.type.name} takes {place.n_bytes} bytes at byte "
                f"{start + place.offset}, but the file ends at {size}: truncated or damaged",
            )
    for before, after in pairwise(sorted(places, key=lambda place: place.offset)):
        if before.offset + before.n_bytes > after.offset:
            raise cursor.error(f"tensor {quoted(after.name)}", f"overlaps tensor {quoted(before.name)}")
    whole = cursor.file.is_whole
    return {
        place.name: Tensor(
            place.name,
            place.type.name,
            place.shape,
            cursor.data[start + place.offset : start + place.offset + place.n_bytes if whole else 0],
        )
        for place in places
    }


STRING, ARRAY = 8, 9
# GGUF's number of a value type -> our name and the NumPy dtype of its bytes.
NUMBERS = {
    0: ("u8", "<u1"), 1: ("i8", "<i1"), 2: ("u16", "<u2"), 3: ("i16", "<i2"), 4: ("u32", "<u4"),
    5: ("i32", "<i4"), 6: ("f32", "<f4"), 7: ("bool", "<u1"),
    10: ("u64", "<u8"), 11: ("i64", "<i8"), 12: ("f64", "<f8"),
}  # fmt: skip
MAX_TEXT_BYTES = 1 << 26


def read_value(cursor: Cursor, where: str) -> StoredValue:
    """Read a value's type and skip the value."""
    kind = cursor.integer("<I", where)
    if kind == ARRAY:
        return _read_array(cursor, where)
    if kind == STRING:
        n_bytes = cursor.length(where)
        if n_bytes > MAX_TEXT_BYTES:
            raise cursor.error(where, f"a string of {n_bytes} bytes, at most {MAX_TEXT_BYTES} are allowed")
        start = cursor.skip(n_bytes, where)
        return StoredValue("string", None, partial(_text, cursor.file, start, start + n_bytes, where))
    name, dtype = _number_type(cursor, kind, where)
    start = cursor.skip(np.dtype(dtype).itemsize, where)
    return StoredValue(name, None, partial(_number, cursor.file, start, name, dtype, where))


def _read_array(cursor: Cursor, where: str) -> StoredValue:
    kind = cursor.integer("<I", where)
    count = cursor.length(where)
    if kind == ARRAY:
        raise cursor.error(where, "an array of arrays; wanted an array of numbers, bools or strings")
    if kind != STRING:
        name, dtype = _number_type(cursor, kind, where)
        start = cursor.skip(count * np.dtype(dtype).itemsize, where)
        return StoredValue(name, count, partial(_numbers, cursor.file, start, count, name, dtype, where))
    if count > cursor.strings_left:
        raise cursor.error(where, f"{count} strings, at most {MAX_STRINGS} are allowed in a file")
    cursor.strings_left -= count
    start = cursor.position
    cursor.skip(count * cursor.length_bytes, where)  # the strings need at least this; checked before the scan
    end = start
    try:
        for run in string_runs(cursor.data, start, count, cursor.length_bytes):
            end = run.end
    except OutOfFileError as error:
        if len(cursor.data) < cursor.size:
            raise HeaderEndsError(len(cursor.data) + 1) from error
        raise cursor.error(
            where, f"string {error.index} of {count} ends after the file: truncated or damaged"
        ) from error
    cursor.position = end
    return StoredValue(
        "string", count, partial(_texts, cursor.file, start, count, cursor.length_bytes, where)
    )


def _number_type(cursor: Cursor, kind: int, where: str) -> tuple[str, str]:
    if kind not in NUMBERS:
        raise cursor.error(where, f"unknown value type {kind}, known are 0 to 12")
    return NUMBERS[kind]


# The functions below decode values; `StoredValue.read` is one of them, bound to the value's offset.


def _text(file: FileMap, start: int, stop: int, where: str, limit: int | None) -> str:
    return utf8(file, start, stop, where)


def _number(file: FileMap, start: int, name: str, dtype: str, where: str, limit: int | None) -> Any:
    return _numbers(file, start, 1, name, dtype, where, None)[0]


def _numbers(
    file: FileMap, start: int, count: int, name: str, dtype: str, where: str, limit: int | None
) -> list[Any]:
    shown = count if limit is None else min(limit, count)
    values = np.frombuffer(file.data, dtype, shown, start) if shown else np.empty(0, dtype)
    if name == "bool":
        if shown and values.max() > 1:
            raise WeightsError(f"{file.path}: {where}: a bool is stored as {values.max()}, wanted 0 or 1")
        values = values.astype(np.bool_)
    return values.tolist()  # type: ignore[no-any-return] # of int, float or bool, by dtype


def _texts(
    file: FileMap, start: int, count: int, length_bytes: int, where: str, limit: int | None
) -> list[str]:
    data = file.data
    texts: list[str] = []
    for run in string_runs(data, start, count if limit is None else min(limit, count), length_bytes):
        texts += _decode_run(file, run, len(texts), where)
    return texts


def _decode_run(file: FileMap, run: StringRun, first_index: int, where: str) -> list[str]:
    """Decode neighbouring strings: one copy of their bytes, then a slice each."""
    first = int(run.starts[0])
    raw = file.data[first : run.end].tobytes()
    starts = run.starts - first
    bounds = zip(starts.tolist(), (starts + run.lengths).tolist(), strict=True)
    texts: list[str] = []
    try:
        texts += [raw[start:stop].decode() for start, stop in bounds]
    except UnicodeDecodeError:
        for index, (start, length) in enumerate(zip(run.starts.tolist(), run.lengths.tolist(), strict=True)):
            utf8(file, start, start + length, f"{where}: string {first_index + index}")
    return texts
