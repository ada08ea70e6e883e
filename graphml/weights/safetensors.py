"""Reads safetensors files: every length and offset of the header is checked before it is used.

Layout: 8 bytes with the header's length, a JSON object name -> dtype, shape, data_offsets, then the data
(https://github.com/huggingface/safetensors). For any bytes opening takes bounded time and memory. Knows
nothing of names or of what tensors mean.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from graphml.errors import WeightsError
from graphml.weights.cursor import quoted
from graphml.weights.filemap import Bytes, FileMap

LARGEST_HEADER = 100_000_000  # bytes, as the format's own reader has it
MAX_TENSORS = 1 << 20
MAX_DIMENSIONS = 8
MAX_EXTENT = 1 << 48
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor as the file has it: the format's name of its dtype, its shape, a uint8 view of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def read_safetensors(file: FileMap) -> dict[str, StoredTensor]:
    """The tensors of one file by name, in file order; WeightsError that names file and tensor."""
    data = file.data
    if len(data) < 8:
        _refuse(file, "header", f"wanted 8 bytes with its length; the file has {len(data)}")
    length = int.from_bytes(bytes(data[:8]), "little")
    if length > min(LARGEST_HEADER, len(data) - 8):
        fits = f"at most {LARGEST_HEADER:,} are allowed and {len(data) - 8:,} follow"
        _refuse(file, "header", f"a length of {length:,} bytes; {fits}: damaged, or no safetensors file")
    header = _read_json(file, bytes(data[8 : 8 + length]))
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        _refuse(file, "header", f"{len(header):,} tensors; at most {MAX_TENSORS:,} are allowed")
    places = {name: _place(file, name, entry, len(data) - 8 - length) for name, entry in header.items()}
    spans = sorted((begin, end, name) for name, (_, _, begin, end) in places.items())
    for (_, end, before), (begin, _, name) in pairwise(spans):
        if begin < end:
            _refuse(file, f"tensor {quoted(name)}", f"overlaps tensor {quoted(before)}")
    start = 8 + length
    return {
        name: StoredTensor(name, dtype, shape, data[start + begin : start + end])
        for name, (dtype, shape, begin, end) in places.items()
    }


def _read_json(file: FileMap, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in {key for key, _ in pairs[:i]})
            _refuse(file, "header", f"{quoted(twice)} appears twice")
        return fields

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _refuse(file, "header", f"wanted JSON in UTF-8: {str(error)[:200]}")
    if not isinstance(header, dict):
        _refuse(file, "header", f"wanted a JSON object; got {type(header).__name__}")
    return header


def _place(file: FileMap, name: str, entry: Any, size: int) -> tuple[str, tuple[int, ...], int, int]:
    """Dtype, shape, begin and end of a header's entry, all checked."""
    where = f"tensor {quoted(name)}"
    if not isinstance(entry, dict):
        _refuse(file, where, f"wanted an object with dtype, shape and data_offsets; got {str(entry)[:60]}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        _refuse(file, where, f"dtype: wanted one of {', '.join(BITS)}; got {str(dtype)[:40]!r}")
    if (
        not isinstance(shape, list)
        or not _whole(shape)
        or len(shape) > MAX_DIMENSIONS
        or any(extent > MAX_EXTENT for extent in shape)
    ):
        _refuse(file, where, f"shape: wanted up to {MAX_DIMENSIONS} sizes; got {str(shape)[:60]}")
    if not isinstance(offsets, list) or not _whole(offsets) or len(offsets) != 2:
        _refuse(file, where, f"data_offsets: wanted two offsets; got {str(offsets)[:60]}")
    begin, end = offsets
    wanted = math.prod(shape) * BITS[dtype] // 8
    if not begin <= end <= size:
        _refuse(file, where, f"bytes {begin} to {end} of the data; the file has {size}: truncated or damaged")
    if end - begin != wanted:
        _refuse(
            file, where, f"shape {list(shape)} of {dtype} takes {wanted} bytes; data_offsets {end - begin}"
        )
    return dtype, tuple(shape), begin, end


def _whole(numbers: list[Any]) -> bool:
    """Whether all are numbers from 0 up."""
    return all(type(number) is int and number >= 0 for number in numbers)


def _refuse(file: FileMap, where: str, text: str) -> NoReturn:
    raise WeightsError(f"{file.path}: {where}: {text}")
