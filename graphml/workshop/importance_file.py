"""Files of importance, as llama-imatrix writes them: GGUF, and the older form that ends in .dat.

GGUF: of each weight NAME.in_sum2 [n_mat, columns] and NAME.counts [n_mat, 1]. The older form, little endian:
a count of weights; of each the length of its name, the name, ncall, nval and nval float32, which are mean
squares times ncall, where ncall is tokens / 512; then the count of chunks and the text's name. Knows arrays
and bytes; nothing of models.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError, WeightsError
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.weights.filemap import Bytes, FileMap
from graphml.weights.gguf import read_part
from graphml.weights.gguf_writing import write_arrays
from graphml.weights.metadata import StoredValue, stored
from graphml.workshop.importance import Importance

OLD_FORM = ".dat"
OLD_CHUNK = 512  # tokens of one "call" of the older form
SUMS, COUNTS = ".in_sum2", ".counts"
TYPE, DATASETS, N_CHUNKS, CHUNK_SIZE = (
    "general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size",
)  # fmt: skip
LONGEST_NAME = 1 << 12
_INT = struct.Struct("<i")


def write_importance(path: Path, seen: Importance, more: Mapping[str, str] | None = None) -> None:
    """Write the file, whole or not at all: the older form where its name ends in .dat. more: further keys."""
    try:
        with replacing(path) as partial:
            if path.suffix == OLD_FORM:
                partial.write_bytes(_old_form(seen))
            else:
                keys = {key: stored(text) for key, text in (more or {}).items()}
                write_arrays(partial, {**_keys(seen), **keys}, _arrays(seen))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {reason(error)}") from None


def read_importance(path: Path) -> Importance:
    """The file at `path`, of either form; a UsageError that says what is wrong in it."""
    return read_with_keys(path)[0]


def read_with_keys(path: Path) -> tuple[Importance, dict[str, Any]]:
    """As `read_importance`, and the file's keys."""
    try:
        if path.stat().st_size == 0 or not path.is_file():
            raise UsageError(f"{path}: wanted a file of importance; it is empty or no plain file")
        file = FileMap(path)
    except OSError as error:
        raise UsageError(f"{path}: wanted a file of importance; {reason(error)}") from None
    try:
        if bytes(file.data[:4]) == b"GGUF":
            return _read_gguf(file)
        return _read_old_form(file.data, path), {}
    except WeightsError as error:
        raise UsageError(str(error)) from None
    finally:
        file.close()


def _keys(seen: Importance) -> dict[str, StoredValue]:
    return {
        TYPE: stored("imatrix"),
        DATASETS: stored(list(seen.datasets) or [""]),
        N_CHUNKS: stored(seen.n_chunks, "u32"),
        CHUNK_SIZE: stored(seen.chunk_size, "u32"),
    }


def _arrays(seen: Importance) -> Iterator[tuple[str, Any]]:
    for name in sorted(seen.sums):
        yield name + SUMS, seen.sums[name].astype(np.float32)
        yield name + COUNTS, seen.counts[name].astype(np.float32)[:, None]


def _read_gguf(file: FileMap) -> tuple[Importance, dict[str, Any]]:
    path = file.path
    metadata, tensors = read_part(file)
    if metadata.get(TYPE) != "imatrix":
        raise UsageError(f"{path}: key {TYPE}: wanted 'imatrix'; got {metadata.get(TYPE)!r:.60}")
    keys = {key: metadata[key] for key in metadata}
    arrays = {name: tensor.numpy().astype(np.float64) for name, tensor in tensors.items()}
    datasets = tuple(text for text in keys.get(DATASETS, ()) if isinstance(text, str) and text)
    seen = Importance(
        datasets=datasets,
        n_chunks=_count(path, keys, N_CHUNKS, 0),
        chunk_size=_count(path, keys, CHUNK_SIZE, 1),
    )
    for name, sums in arrays.items():
        if not name.endswith(SUMS):
            continue
        weight = name.removesuffix(SUMS)
        counts = arrays.get(weight + COUNTS)
        if counts is None:
            raise UsageError(f"{path}: {name}: wanted {weight}{COUNTS} beside it")
        table = sums.reshape(-1, sums.shape[-1]) if sums.ndim else sums.reshape(1, 1)
        _check(path, weight, table, counts)
        per_matrix = (
            np.broadcast_to(counts.ravel(), (len(table),)) if counts.size in (1, len(table)) else None
        )
        if per_matrix is None:
            raise UsageError(f"{path}: {weight}{COUNTS}: wanted 1 or {len(table)} numbers; got {counts.size}")
        seen.add(weight, table, np.rint(per_matrix).astype(np.int64))
    if not seen.sums:
        raise UsageError(f"{path}: wanted a file of importance; it has no tensor NAME{SUMS}")
    return seen, keys


def _count(path: Path, keys: Mapping[str, Any], key: str, least: int) -> int:
    value = keys.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{path}: key {key}: wanted a whole number from {least} on; got {value!r:.60}")
    return value


def _check(path: Path, weight: str, sums: Any, counts: Any) -> None:
    """Sums of squares and counts: finite, and not below 0."""
    for what, numbers in ((SUMS, sums), (COUNTS, counts)):
        if not np.isfinite(numbers).all() or (numbers < 0).any():
            raise UsageError(f"{path}: {weight}{what}: wanted finite numbers from 0 on")


def _old_form(seen: Importance) -> bytes:
    parts = [_INT.pack(len(seen.sums))]
    for weight in sorted(seen.sums):
        name = weight.encode()
        means = seen.of(weight)
        assert means is not None
        calls = math.ceil(int(seen.counts[weight].max()) / OLD_CHUNK)
        parts += [_INT.pack(len(name)), name, _INT.pack(calls), _INT.pack(means.size)]
        parts.append((means * np.float32(calls)).astype("<f4").tobytes())
    text = (seen.datasets[-1] if seen.datasets else "").encode()
    return b"".join([*parts, _INT.pack(seen.n_chunks), _INT.pack(len(text)), text])


def _read_old_form(data: Bytes, path: Path) -> Importance:
    """Its counts say calls of 512 tokens; several matrices of a weight are one row of numbers."""
    place = 0

    def take(size: int, what: str) -> bytes:
        nonlocal place
        if size < 0 or place + size > len(data):
            raise UsageError(f"{path}: wanted {what} at byte {place}; the file has {len(data)} bytes")
        place += size
        return data[place - size : place].tobytes()

    def number(what: str) -> int:
        return int(_INT.unpack(take(4, what))[0])

    seen = Importance(chunk_size=OLD_CHUNK)
    n_weights = number("a count of weights")
    if n_weights < 1:
        raise UsageError(f"{path}: wanted a file of importance; it begins with {data[:8].tobytes()!r}")
    for _ in range(n_weights):
        length = number("a length of a name")
        if not 0 < length <= LONGEST_NAME:
            raise UsageError(f"{path}: wanted a length of a name at byte {place - 4}; got {length}")
        name = take(length, "a name").decode("utf-8", "replace")
        calls = number(f"{name}: a count of calls")
        size = number(f"{name}: a count of values")
        values = np.frombuffer(take(4 * size, f"{name}: {size} numbers"), "<f4").astype(np.float64)
        if not size or not np.isfinite(values).all() or (values < 0).any():
            raise UsageError(f"{path}: {name}: wanted finite numbers from 0 on")
        tokens = max(calls, 1) * OLD_CHUNK
        seen.add(name, values[None] / max(calls, 1) * tokens, np.array([tokens], np.int64))
    if place < len(data):
        seen.n_chunks = number("a count of chunks")
        text = take(number("a length of the text's name"), "the text's name").decode("utf-8", "replace")
        seen.datasets = (text,) if text else ()
    return seen
