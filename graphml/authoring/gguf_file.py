"""Writes GGUF files: metadata and float32 tensors, without a vocabulary unless one is among them; samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.loading.architecture import SampleModel
from graphml.system.read_files import reason
from graphml.weights.gguf_writing import write_arrays
from graphml.weights.metadata import stored

KINDS = {bool: "bool", int: "u32", float: "f32", str: "string"}
VOCABULARY = "tokenizer.ggml.model"


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Any]],
    what: str = "",
) -> None:
    """Write the file; a UsageError if it cannot be written, which names `what` is written."""
    values = {"general.architecture": architecture, **metadata}
    values.setdefault(VOCABULARY, "no_vocab")
    typed = {
        key: stored(value, _kind(value if isinstance(value, list) else [value]))
        for key, value in values.items()
    }
    try:
        write_arrays(path, typed, tensors)
    except OSError as error:
        raise UsageError(f"{path}: {what}cannot be written: {reason(error)}") from None


def _kind(values: Sequence[Any]) -> str:
    """The type of some values: whole numbers are unsigned where they can be, as most of GGUF's keys."""
    kind = KINDS[type(values[0])]
    return "i64" if kind == "u32" and not 0 <= min(values) <= max(values) < 1 << 32 else kind


def write_tiny(path: Path, architecture: str, model: SampleModel) -> None:
    """Write the sample; a UsageError for a file that cannot be written.

    Products with matrices keep the size of activations, norms are about 1; without a vocabulary.
    """
    tensors = ((name, random_weights(name, shape)) for name, shape in model.tensors.items())
    write_gguf(path, architecture, model.metadata, tensors, "the sample ")


def random_weights(name: str, shape: tuple[int, ...]) -> Any:
    """Float32 numbers that depend on the name alone."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if name.endswith(".bias") or len(shape) == 1:
        return np.float32(0.1) * numbers + np.float32(0.0 if name.endswith(".bias") else 1.0)
    return numbers if name.startswith("token_embd") else numbers / np.float32(shape[-1] ** 0.5)
