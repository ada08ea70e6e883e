"""Which adapters and control vectors a model or a session runs with: files and scales become compile options.

Knows files, scales and options; nothing of graphs.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.loading.adapter_files import read_adapter, read_control_vectors
from graphml.loading.huggingface.peft_folder import files_of
from graphml.options.argument_checks import items_of, path_of, whole_number
from graphml.options.option_fields import Real
from graphml.passes.lora import Adapter
from graphml.runtime.blocks.request import AppliedAdapter
from graphml.weights import ModelFile

AnyPath: TypeAlias = str | os.PathLike[str]
Scaled: TypeAlias = Sequence[tuple[AnyPath, float]]
"""Files, each with its scale."""
Layers: TypeAlias = tuple[int, int]
"""The first and the last layer."""
_SCALES = Real()


def checked_files(name: str, value: object) -> list[tuple[Path, float]] | None:
    """Files with their scales as they are given to an option; a file alone has the scale 1."""
    if value is None:
        return None
    files, folders = [], name == "lora"
    for item in items_of(name, value, "files, each with its scale: (file, scale)"):
        file, scale = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
        path = Path(path_of(name, file))
        if not str(file) or (not path.is_file() and not (folders and path.is_dir())):
            wanted = "a GGUF file or a folder of PEFT" if folders else "a GGUF file"
            raise UsageError(f"{name}: wanted {wanted}; there is none at {str(file)!r}")
        files.append((path, _SCALES.read(f"{name}: scale of {file}", scale)))
    return files


def parse_files(texts: Iterable[str]) -> list[tuple[str, float]]:
    """`FILE` or `FILE:SCALE`, as on the command line."""
    files: list[tuple[str, float]] = []
    for text in texts:
        file, colon, scale = text.rpartition(":")
        try:
            files.append((text, 1.0) if not colon or Path(text).exists() else (file, float(scale)))
        except ValueError:
            files.append((text, 1.0))
    return files


def checked_layers(name: str, value: object) -> Layers | None:
    """The first and the last layer of control vectors."""
    if value is None:
        return None
    ends: Any = value if isinstance(value, tuple | list) and len(value) == 2 else (None, None)
    first, last = whole_number(ends[0]), whole_number(ends[1])
    if first is None or last is None or not 0 <= first <= last:
        raise UsageError(f"{name}: wanted the first and the last layer, as (1, 12); got {value!r}")
    return first, last


def parse_layers(text: str | None) -> Layers | None:
    """`FIRST-LAST`, as on the command line; None where it is not given."""
    if text is None:
        return None
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal():
        raise UsageError(f"control_layers: wanted FIRST-LAST, as 1-12; got {text!r}")
    return int(first), int(last)


_READ: WeakKeyDictionary[ModelFile, OrderedDict[tuple[tuple[str, int, int], ...], Adapter]] = (
    WeakKeyDictionary()
)
KEPT: Final = 32
"""Adapters of a model that are kept once they were read: of sessions and of requests alike."""
_LOCK = Lock()


def _opened(path: Path, model: ModelFile) -> Adapter:
    """The adapter of a file or folder, read once as long as the files do not change."""
    read_files = files_of(path) if path.is_dir() else (path,)
    stats = [(file, file.stat()) for file in read_files]
    key = tuple((str(file.resolve()), stat.st_mtime_ns, stat.st_size) for file, stat in stats)
    with _LOCK:
        kept = _READ.setdefault(model, OrderedDict())
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
    adapter = read_adapter(path, model)
    with _LOCK:
        for old in [known for known in kept if known[0][0] == key[0][0]]:
            del kept[old]
        kept[key] = adapter
        while len(kept) > KEPT:
            kept.popitem(last=False)
    return adapter


def applied_adapters(
    model: ModelFile, lora: Scaled | None, ids: Array, encodes: bool = False
) -> tuple[AppliedAdapter, ...] | None:
    """What the rows of a prompt with these ids get; None for None.

    An activated adapter works from the last occurrence of its invocation tokens on, or nowhere. UsageError
    and WeightsError as of `with_adapters`.
    """
    files = checked_files("lora", lora)
    if files is None:
        return None
    check_no_encoder(encodes)
    opened = [(_opened(path, model), scale) for path, scale in files if scale]
    starts = [(adapter, scale, invoked_at(adapter.invocation, ids.tolist())) for adapter, scale in opened]
    return tuple(
        AppliedAdapter(adapter, scale, start) for adapter, scale, start in starts if start is not None
    )


def invoked_at(invocation: tuple[int, ...], ids: list[int]) -> int | None:
    """Where the last occurrence begins; 0 for no invocation, None where it does not occur."""
    for start in range(len(ids) - len(invocation), -1, -1):
        if invocation and tuple(ids[start : start + len(invocation)]) == invocation:
            return start
    return None if invocation else 0


def applied_by_model(options: CompileOptions, ids: Array) -> tuple[AppliedAdapter, ...] | None:
    """The same of the adapters that a model was opened with; None where all work from the begin on."""
    if not any(adapter.invocation for adapter in options.adapters):
        return None
    applied = [
        AppliedAdapter(adapter, factor, start)
        for adapter, factor in zip(options.adapters, options.factors, strict=True)
        if (start := invoked_at(adapter.invocation, ids.tolist())) is not None
    ]
    return tuple(applied)


def check_no_encoder(encodes: bool) -> None:
    """UsageError for adapters of one session or request of a model whose encoder would run without them."""
    if encodes:
        raise UsageError(
            "lora: the model has an encoder, whose program is the model's: wanted adapters given to load"
        )


def with_adapters(
    options: CompileOptions, file: ModelFile, lora: Scaled | None, encodes: bool = False
) -> CompileOptions:
    """The options with these adapters in place of what they have; None leaves them.

    encodes: they are for a session of a model with an encoder, which is refused. UsageError for wrong scales,
    WeightsError for files that hold no adapter of the model.
    """
    files = checked_files("lora", lora)
    if files is None:
        return options
    check_no_encoder(encodes)
    used = [(_opened(path, file), scale) for path, scale in files if scale]
    return replace(
        options, adapters=tuple(adapter for adapter, _ in used), factors=tuple(scale for _, scale in used)
    )


def with_control(
    options: CompileOptions, file: ModelFile, vectors: Scaled | None, layers: Layers | None
) -> CompileOptions:
    """The options with these control vectors in place of what they have; None leaves them.

    layers: None is all but the first, which no vector is for. Errors as of `with_adapters`.
    """
    files, ends = checked_files("control_vectors", vectors), checked_layers("control_layers", layers)
    if files is None:
        if ends is not None:
            raise UsageError("control_layers: wanted control_vectors, too")
        return options
    architecture = file.metadata.text("general.architecture")
    n_layer, n_embd = (
        file.metadata.integer(f"{architecture}.{key}") for key in ("block_count", "embedding_length")
    )
    control = read_control_vectors(
        [scaled for scaled in files if scaled[1]], ends or (1, n_layer - 1), n_embd
    )
    return replace(options, control=control)
