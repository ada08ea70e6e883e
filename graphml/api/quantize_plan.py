"""Which type each tensor of a model gets, by llama-quantize's rules for a file type.

Knows metadata and names; reads and writes no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import graphml_quant
import numpy as np

from graphml.errors import UsageError
from graphml.weights.type_mixes import (
    FALLBACK,
    ModelFacts,
    file_type,
    fitting,
    wanted_format,
)

OF_70B = {"llama": 80, "qwen2": 80, "deci": 80}
"""Architectures whose models of so many layers llama.cpp takes for one of 70 billion parameters."""
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
LAST_BLOCK = 32
"""Numbers of the blocks that nothing smaller replaces: such a matrix is F16."""


def quantize_plan(
    metadata: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], file_type_name: str,
    imatrix: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Name -> type of each tensor, such as "Q4_K", as `llama-quantize` of llama.cpp 0.5.0 gives it.

    metadata: the file's, with `ARCH.block_count` and counts of heads and experts. tensors: name -> shape, as
    NumPy has it [rows, columns] or as GGUF files write it [columns, rows]; which it is follows from the
    embedding's rows. file_type_name: "Q4_K_M", "IQ2_XS", "MXFP4_MOE", ... imatrix: whether an importance
    matrix is there. UsageError for another file type, for metadata that lack a count, and for a tensor whose
    rows no type of this file type takes.
    """
    mixed = mixture(metadata, tensors, file_type_name, imatrix)
    return {name: fitted(name, format, columns).upper() for name, (format, columns) in mixed.items()}


def mixture(
    metadata: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], file_type_name: str, imatrix: bool
) -> dict[str, tuple[str, int]]:
    """As `quantize_plan`, before rows are looked at: name -> format, and the columns of a row."""
    kind = file_type(file_type_name)
    facts = _facts(metadata, tensors, imatrix)
    reverse = _is_reversed(metadata, tensors)
    mixed = {}
    for name, shape in tensors.items():
        sizes = _sizes(name, shape)
        rows_last = sizes[::-1] if reverse else sizes
        mixed[name] = wanted_format(kind, name, rows_last, facts), rows_last[-1] if rows_last else 1
    return mixed


def _sizes(name: str, shape: object) -> tuple[int, ...]:
    """A shape's sizes; UsageError for anything else."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else None
    whole = (int, np.integer)
    if sizes is None or any(isinstance(n, bool) or not isinstance(n, whole) or n < 0 for n in sizes):
        raise UsageError(f"tensors: {name}: wanted a shape of whole numbers from 0; got {shape!r:.60}")
    return tuple(int(n) for n in sizes)


def _facts(metadata: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], imatrix: bool) -> ModelFacts:
    arch = _architecture(metadata)

    def count(key: str, default: int | None = None) -> int:
        value = metadata.get(f"{arch}.{key}", default)
        first = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise UsageError(f"metadata: {arch}.{key}: wanted a whole number; got {value!r:.60}")
        return first

    n_layer, n_head = count("block_count"), count("attention.head_count", 0)
    n_head_kv = count("attention.head_count_kv", n_head)
    n_gqa = n_head // n_head_kv if n_head_kv else 0
    is_70b = OF_70B.get(arch) == n_layer and (arch != "llama" or n_head != n_head_kv)
    tied = OUTPUT not in tensors
    return ModelFacts(n_layer, n_gqa, count("expert_count", 0), tied, arch == "falcon", is_70b, imatrix)


def _architecture(metadata: Mapping[str, Any]) -> str:
    stated = metadata.get("general.architecture")
    names = {key.removesuffix(".block_count") for key in metadata if key.endswith(".block_count")}
    if isinstance(stated, str) or len(names) == 1:
        return stated if isinstance(stated, str) else names.pop()
    raise UsageError("metadata: wanted general.architecture, or one key ARCH.block_count")


def _is_reversed(metadata: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> bool:
    """Whether shapes have the row's length first, as GGUF files do."""
    width = metadata.get(f"{_architecture(metadata)}.embedding_length")
    shape = _sizes(EMBEDDING, tensors.get(EMBEDDING, ()))
    return len(shape) > 1 and shape[0] == width != shape[-1]


def fitted(name: str, format: str, columns: int) -> str:
    """`fitting` of a matrix; a UsageError for types that llama-quantize replaces by none."""
    block = graphml_quant.by_name(format).block_elements
    if block > LAST_BLOCK and format not in FALLBACK and columns % block:
        raise UsageError(
            f"{name}: rows of {columns} are no multiple of {block}, which {format.upper()} wants"
        )
    return fitting(format, columns)
