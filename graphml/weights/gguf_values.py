"""Values of GGUF metadata: skips them in the header, and decodes one when it is read.

Knows the value types of GGUF; nothing of keys, tensors and the rest of the header.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from graphml.errors import WeightsError
from graphml.weights.cursor import MAX_STRINGS, Cursor, HeaderEndsError, utf8
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Stored
from graphml.weights.strings import OutOfFileError, Run, string_runs

STRING, ARRAY = 8, 9
# GGUF's number of a value type -> our name and the NumPy dtype of its bytes.
NUMBERS = {
    0: ("u8", "<u1"), 1: ("i8", "<i1"), 2: ("u16", "<u2"), 3: ("i16", "<i2"), 4: ("u32", "<u4"),
    5: ("i32", "<i4"), 6: ("f32", "<f4"), 7: ("bool", "<u1"),
    10: ("u64", "<u8"), 11: ("i64", "<i8"), 12: ("f64", "<f8"),
}  # fmt: skip
MAX_TEXT_BYTES = 1 << 26


def read_value(cursor: Cursor, where: str) -> Stored:
    """Read a value's type and skip the value."""
    kind = cursor.integer("<I", where)
    if kind == ARRAY:
        return _read_array(cursor, where)
    if kind == STRING:
        n_bytes = cursor.length(where)
        if n_bytes > MAX_TEXT_BYTES:
            raise cursor.error(where, f"a string of {n_bytes} bytes, at most {MAX_TEXT_BYTES} are allowed")
        start = cursor.skip(n_bytes, where)
        return Stored("string", None, partial(_text, cursor.file, start, start + n_bytes, where))
    name, dtype = _number_type(cursor, kind, where)
    start = cursor.skip(np.dtype(dtype).itemsize, where)
    return Stored(name, None, partial(_number, cursor.file, start, name, dtype, where))


def _read_array(cursor: Cursor, where: str) -> Stored:
    kind = cursor.integer("<I", where)
    count = cursor.length(where)
    if kind == ARRAY:
        raise cursor.error(where, "an array of arrays; wanted an array of numbers, bools or strings")
    if kind != STRING:
        name, dtype = _number_type(cursor, kind, where)
        start = cursor.skip(count * np.dtype(dtype).itemsize, where)
        return Stored(name, count, partial(_numbers, cursor.file, start, count, name, dtype, where))
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
    return Stored("string", count, partial(_texts, cursor.file, start, count, cursor.length_bytes, where))


def _number_type(cursor: Cursor, kind: int, where: str) -> tuple[str, str]:
    if kind not in NUMBERS:
        raise cursor.error(where, f"unknown value type {kind}, known are 0 to 12")
    return NUMBERS[kind]


# The functions below decode values; `Stored.read` is one of them, bound to the value's offset.


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


def _decode_run(file: FileMap, run: Run, first_index: int, where: str) -> list[str]:
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
