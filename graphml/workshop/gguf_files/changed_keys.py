"""A key of a GGUF file set to another value: the file is written anew, whole, beside the old one.

A key keeps its type, and a new one has the type that readers want of its name. Knows keys and types; nothing
of tensors but that they stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphml.errors import UsageError, WeightsError, did_you_mean
from graphml.weights.filemap import FileMap
from graphml.weights.gguf import NUMBERS, read_part
from graphml.weights.gguf_writing import stored_values
from graphml.weights.metadata import StoredValue, stored
from graphml.weights.split import part_paths
from graphml.workshop.gguf_files.whole_files import copied

TYPES = ("string", "bool", *(name for name, _ in NUMBERS.values() if name != "bool"))
FIXED = ("general.alignment", "split.")
"""Beginnings of keys that say how the file is laid out."""
WANTED = (
    ("f32", re.compile(r"(epsilon|scale|freq_base|freq_base_swa|factor|softcapping|clamp_kqv|alibi_bias|"
                       r"beta_fast|beta_slow|log_multiplier|\.temp|\.top_p|\.min_p)$")),
    ("i32", re.compile(r"sampling\.(top_k|penalty_last_n|mirostat)$")),
    ("u32", re.compile(r"(_count|_length|_token_id|_rank|block_count|_window|vocab_size|_size)$")),
    ("bool", re.compile(r"(\.add_\w+_token|add_space_prefix|\.causal|use_parallel_residual)$")),
    ("string", re.compile(r"^general\.(architecture|name|license\S*|author|description|url|type)$|"
                          r"chat_template\S*$|\.ggml\.(model|pre)$|scaling\.type$")),
)  # fmt: skip
"""Types that readers want of a key, by its name."""


class FormerValue(NamedTuple):
    """What a key was: its value as a text; of a new key its type and a question about near ones."""

    text: str
    new_type: str = ""
    near: str = ""


def set_key(path: Path, key: str, text: str, kind: str | None, output: Path) -> FormerValue:
    """Write the file with the key at another value; what was there before.

    text: the value, of an array a JSON list. kind: its type, None for that of the key. UsageError for a value
    or a type that the key cannot have.
    """
    if not re.fullmatch(r"[\w.-]{1,256}", key):
        raise UsageError(f"KEY: wanted letters, digits, dots, - and _; got {key!r:.80}")
    if key.startswith(FIXED):
        raise UsageError(f"{key}: wanted a key of the model; this one says how the file is laid out")
    file = FileMap(path)
    try:
        metadata, tensors = read_part(file)
        if metadata.integer("split.no", 0):
            raise UsageError(f"{path}: wanted the first part of the model, which has its keys")
        if metadata.integer("split.count", 1) > 1:
            try:
                part_paths(output, 0, metadata.integer("split.count"))
            except WeightsError as error:
                raise UsageError(str(error)) from None
        before = metadata.beginning(key, 0)[:2] if key in metadata else None
        value = value_of(key, text, kind, before)
        if before is None:
            was = FormerValue("nothing", value.type, did_you_mean(key, list(metadata), 1))
        else:
            was = FormerValue(str(metadata.describe(key)).partition(" = ")[2])
        copied(output, {**stored_values(metadata), key: value}, [*tensors.values()])
        return was
    finally:
        file.close()


def value_of(key: str, text: str, kind: str | None, before: tuple[str, int | None] | None) -> StoredValue:
    """A text as a value; before: the type that the key has, and whether it is an array."""
    if kind is not None and kind not in TYPES:
        raise UsageError(f"--type: wanted one of {', '.join(TYPES)}; got {kind!r:.40}")
    wanted = (
        before[0] if before is not None else next((of for of, names in WANTED if names.search(key)), None)
    )
    if None not in (kind, wanted) and kind != wanted:
        whose = "has that type" if before is not None else "is read in it"
        raise UsageError(f"{key}: wanted {wanted}, as the key {whose}; got --type {kind}")
    dtype = kind or wanted or _type_of(text)
    listed = _listed(text) if before is None or before[1] is not None else None
    if before is not None and before[1] is not None and listed is None:
        raise UsageError(f"{key}: wanted a JSON list of {dtype}, as the key has one; got {text!r:.60}")
    if listed is not None and (wanted != "string" or before is not None):
        return stored([_scalar(key, part, dtype) for part in listed], dtype)
    return stored(_scalar(key, text, dtype), dtype)


def _listed(text: str) -> Sequence[Any] | None:
    if not text.startswith("["):
        return None
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    return listed if isinstance(listed, list) else None


def _type_of(text: str) -> str:
    listed = _listed(text)
    if listed:
        kinds = {_type_of(json.dumps(part) if not isinstance(part, str) else part) for part in listed}
        return kinds.pop() if len(kinds) == 1 else "f32" if kinds <= {"u32", "i32", "f32"} else "string"
    if text in ("true", "false"):
        return "bool"
    if re.fullmatch(r"-?\d+", text):
        return "u32" if 0 <= int(text) < 1 << 32 else "i64"
    return "f32" if re.fullmatch(r"-?\d*\.?\d+([eE][+-]?\d+)?", text) else "string"


def _scalar(key: str, value: Any, dtype: str) -> Any:
    """A value of the type; UsageError for another."""
    text = value if isinstance(value, str) else json.dumps(value)
    if dtype == "string":
        return text
    if dtype == "bool":
        if text not in ("true", "false"):
            raise UsageError(f"{key}: wanted true or false; got {text!r:.60}")
        return text == "true"
    try:
        if dtype.startswith("f"):
            number = float(text)
            if not abs(number) <= float(np.finfo(np.float32 if dtype == "f32" else np.float64).max):
                raise ValueError
            return number
        whole, bounds = int(text), np.iinfo({"u": "uint", "i": "int"}[dtype[0]] + dtype[1:])
        if not bounds.min <= whole <= bounds.max:
            raise ValueError
        return whole
    except ValueError:
        raise UsageError(f"{key}: wanted a number of type {dtype}; got {text!r:.60}") from None
