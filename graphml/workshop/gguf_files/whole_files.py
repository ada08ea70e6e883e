"""GGUF files written anew from tensors as they are: copies, parts of a split model, one file of its parts.

Data is written in pieces; a file has its name when it is whole. Knows files; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.weights import ModelFile, Tensor
from graphml.weights.gguf_writing import TensorPlan, write_parts, writing_gguf
from graphml.weights.metadata import StoredValue
from graphml.workshop.quantized_file import (
    Change,
    check_not_own,
    heads_of,
    part_names,
    split_plan,
    tensor_plans,
    whole_values,
)

PIECE = 64 << 20
"""Bytes that are written at a time."""


def copied(
    path: Path, values: Mapping[str, StoredValue], tensors: Sequence[Tensor], progress: Progress = no_progress
) -> None:
    """One file of these values and tensors; UsageError where it cannot be written."""
    plans = [TensorPlan(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
    done, total = 0, sum(tensor.n_bytes for tensor in tensors)
    with writing_gguf(path, values, plans) as written:
        for tensor in tensors:
            written.add(_pieces(tensor))
            done += tensor.n_bytes
            progress("copying", done, total)


def _pieces(tensor: Tensor) -> Iterator[Any]:
    for start in range(0, tensor.n_bytes, PIECE):
        yield tensor.data[start : start + PIECE]


def split_file(
    file: ModelFile, output: Path, most: int | None, tensors: int | None, progress: Progress = no_progress
) -> list[Path]:
    """The model in parts of at most so many bytes or tensors, beside `output`; their paths.

    All get their names when all are whole. UsageError for a model that would be one part.
    """
    parts = split_plan([Change(tensor, tensor.dtype) for tensor in file.tensors.values()], most, tensors)
    if len(parts) < 2:
        raise UsageError(f"{file.path}: would be one part: wanted a smaller size, or fewer tensors")
    paths = part_names(output, len(parts))
    check_not_own(file, paths)
    done = 0

    def data(of: TensorPlan) -> Iterator[Any]:
        nonlocal done
        yield from _pieces(file.tensors[of.name])
        done += of.n_bytes
        progress("copying", done, file.n_weight_bytes)

    write_parts(
        paths, heads_of(whole_values(file), parts), [tensor_plans(part) for part in parts], data, output
    )
    return paths


def merge_parts(file: ModelFile, output: Path, progress: Progress = no_progress) -> None:
    """One file of all parts of a model; UsageError for one that has no parts."""
    if len(file.paths) < 2:
        raise UsageError(f"{file.path}: wanted a part of a split model; it is whole")
    check_not_own(file, [output])
    copied(output, whole_values(file), [*file.tensors.values()], progress)
