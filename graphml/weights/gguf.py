"""Reads GGUF, versions 1 to 3, little endian: every length and offset is checked before it is used.

A value is stored as its offset in the map and decoded when it is read; a tensor is a view. For any bytes
opening takes bounded time and memory, and returns a file or raises one WeightsError that names the file and
the key or tensor. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows nothing of the
meaning of keys or tensors, except `general.alignment`, which places the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import graphml_quant

from graphml.weights.cursor import Cursor, quoted
from graphml.weights.filemap import FileMap
from graphml.weights.gguf_values import read_value
from graphml.weights.metadata import Metadata, Stored
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
    values: dict[str, Stored] = {}
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
