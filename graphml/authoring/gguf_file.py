"""Writes GGUF files: metadata and float32 tensors, without a vocabulary unless one is among them; samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from graphml.errors import UsageError
from graphml.loading.architecture import SampleModel

KINDS = {
    bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}  # fmt: skip
VOCABULARY = "tokenizer.ggml.model"


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, Any]],
    what: str = "",
) -> None:
    """Write the file; a UsageError if it cannot be written, which names `what` is written."""
    try:
        with path.open("wb"):
            pass  # checks that the file can be written before the writer opens it
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            if isinstance(value, list):
                writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=_kind(value))
            else:
                writer.add_key_value(key, value, _kind([value]))
        if VOCABULARY not in metadata:
            writer.add_tokenizer_model("no_vocab")
        for name, array in tensors:
            writer.add_tensor(name, np.ascontiguousarray(array))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise UsageError(f"{path}: {what}cannot be written: {error.strerror or error}") from None


def _kind(values: Sequence[Any]) -> gguf.GGUFValueType:
    """The type of some values: whole numbers are unsigned where they can be, as most of GGUF's keys."""
    kind = KINDS[type(values[0])]
    if kind == gguf.GGUFValueType.UINT32 and not 0 <= min(values) <= max(values) < 1 << 32:
        return gguf.GGUFValueType.INT64
    return kind


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
