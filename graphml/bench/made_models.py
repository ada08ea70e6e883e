"""Generates a GGUF file with random weights, of a shape and a file type, once, in the cache folder.

Random bits are written without an encoder, so the disk determines the time. llama.cpp opens such a file too.
It appears under its name only when it is complete and on the disk, and is used only if its size and header
are unchanged; half-written files of killed processes are removed at the next call.

Knows the layout of the file's header; nothing of programs or of time.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import graphml_quant
from filelock import FileLock
from graphml_quant.format import Format

from graphml import settings
from graphml.backend import Progress, no_progress
from graphml.bench.shapes import Shape, Value, metadata, shape_named, tensors
from graphml.errors import UsageError
from graphml.loading.download.reports import with_progress
from graphml.loading.download.stored import is_locked
from graphml.system import cache_access
from graphml.system.pages import let_go
from graphml.weights.random_tensors import random_values
from graphml.weights.type_mixes import FileType, ModelFacts, file_type, tensor_format

MADE = "making"
ALIGNMENT = 32
GENERATION = 1
"""Part of the file's name; changed whenever the same name would mean other bytes."""
_PARTIAL = ".part"
_UINT32, _FLOAT32, _STRING, _ARRAY = 4, 6, 8, 9


def bench_model(shape: str | Shape, type: str = "Q4_K_M", progress: Progress = no_progress) -> Path:
    """The path of a model of random weights, made if the cache folder does not have it yet.

    shape: a name of `SHAPES`, or a shape. type: llama-quantize's name of a file type ("Q4_K_M"). progress:
    called as progress("making", bytes done, bytes in all). Raises UsageError for an unknown name or a folder
    that cannot be written; an error of `progress` comes out unchanged.
    """
    wanted = shape_named(shape) if isinstance(shape, str) else shape
    kind = file_type(type)
    path = settings.cache_folder() / "bench" / f"{wanted.name}-{kind.name}-v{GENERATION}.gguf"
    with_progress(lambda guarded: _make(path, wanted, kind, guarded), progress)
    return path


def _make(path: Path, wanted: Shape, kind: FileType, progress: Progress) -> None:
    try:
        for folder in (path.parent, _lock_of(path.name).parent):
            cache_access.make(folder)
        _sweep(path.parent)
        if not _is_whole(path, wanted, kind):
            with FileLock(_lock_of(path.name)):
                if not _is_whole(path, wanted, kind):
                    _write_whole(path, wanted, kind, progress)
    except OSError as error:
        raise UsageError(f"{path}: the model cannot be written: {error.strerror or error}") from None


def _lock_of(name: str) -> Path:
    """The lock file that a process holds while it makes the file of this name."""
    return settings.cache_folder() / "partial" / f"{name}.lock"


def _sweep(folder: Path) -> None:
    """Remove half-written files of killed processes, of any model."""
    # All files found are older than the check of the lock: a file whose lock is free has no writer.
    for partial in list(folder.glob(f"*{_PARTIAL}")):
        name, ending, _ = partial.name.partition(".gguf")
        if not is_locked(_lock_of(name + ending)):
            partial.unlink(missing_ok=True)


def _is_whole(path: Path, shape: Shape, kind: FileType) -> bool:
    """Whether the file exists, with the size and header that it was made with."""
    header, n_bytes = _layout(shape, kind)
    if not path.is_file() or path.stat().st_size != n_bytes:
        return False
    with path.open("rb") as file:
        return file.read(len(header)) == header


def _write_whole(path: Path, shape: Shape, kind: FileType, progress: Progress) -> None:
    """Write the file; it appears under its name complete or not at all."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=_PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            write_model(file, shape, kind, progress)
            file.flush()
            os.fsync(file.fileno())
            let_go(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise


def write_model(file: IO[bytes], shape: Shape, kind: FileType, progress: Progress = no_progress) -> None:
    """Write the model: header, names, and random numbers of the size that keeps activations about 1."""
    chosen = _formats(shape, kind)
    file.write(_layout(shape, kind)[0])
    done, whole = 0, sum(chosen[name].bytes_for_shape(size) for name, size in tensors(shape).items())
    for name, size in tensors(shape).items():
        file.write(bytes(-file.tell() % ALIGNMENT))
        for chunk in random_values(name, size, chosen[name]):
            file.write(chunk)
            done += len(chunk)
            progress(MADE, done, whole)
    file.write(bytes(-file.tell() % ALIGNMENT))


def _formats(shape: Shape, kind: FileType) -> dict[str, Format]:
    """The format of each tensor."""
    facts = ModelFacts(shape.n_layer, shape.n_head // shape.n_head_kv, shape.n_expert, shape.tied)
    return {
        name: graphml_quant.by_name(tensor_format(kind, name, size, facts))
        for name, size in tensors(shape).items()
    }


def _layout(shape: Shape, kind: FileType) -> tuple[bytes, int]:
    """The header of the file, and how many bytes it has in all."""
    sizes, chosen = tensors(shape), _formats(shape, kind)
    header = _header({**metadata(shape), "general.file_type": kind.number}, sizes, chosen)
    parts = [len(header), *(chosen[name].bytes_for_shape(size) for name, size in sizes.items())]
    return header, sum(n_bytes + -n_bytes % ALIGNMENT for n_bytes in parts)


def _header(
    keys: Mapping[str, Value], sizes: Mapping[str, tuple[int, ...]], chosen: Mapping[str, Format]
) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(sizes), len(keys))]
    parts += [_string(key) + _value(value) for key, value in keys.items()]
    offset = 0
    for name, size in sizes.items():
        dims = struct.pack(f"<I{len(size)}Q", len(size), *reversed(size))
        parts.append(_string(name) + dims + struct.pack("<IQ", chosen[name].ggml_type, offset))
        offset += chosen[name].bytes_for_shape(size)
        offset += -offset % ALIGNMENT
    return b"".join(parts)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}I", _ARRAY, _UINT32, len(value), *value)
    return (
        struct.pack("<If", _FLOAT32, value)
        if isinstance(value, float)
        else struct.pack("<II", _UINT32, value)
    )
