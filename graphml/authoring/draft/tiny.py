"""Writes a sample of an architecture as a small GGUF file with random weights."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from graphml.authoring.gguf_file import write_gguf
from graphml.loading.architecture import SampleModel


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
