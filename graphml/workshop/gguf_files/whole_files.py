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
from graphml.weights.gguf_writing import TensorPlan, stored_values, writing_gguf
from graphml.weights.metadata import StoredValue
from graphml.weights.split import split_values
from graphml.workshop.quantized_file import Change, part_names, split_plan

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


def _unsplit(file: ModelFile) -> dict[str, StoredValue]:
    return {key: of for key, of in stored_values(file.metadata).items() if not key.startswith("split.")}


def _check_own(file: ModelFile, paths: Sequence[Path]) -> None:
    own = {path.resolve() for path in file.paths}
    for path in paths:
        if path.resolve() in own:
            raise UsageError(f"{path}: is the model itself; wanted another name")


def split_file(
    file: ModelFile, output: Path, most: int | None, tensors: int | None, progress: Progress = no_progress
) -> list[Path]:
    """The model in parts of at most so many bytes or tensors, beside `output`; their paths.

    UsageError for a model that would be one part.
    """
    parts = split_plan([Change(tensor, tensor.dtype) for tensor in file.tensors.values()], most, tensors)
    if len(parts) < 2:
        raise UsageError(f"{file.path}: would be one part: wanted a smaller size, or fewer tensors")
    paths = part_names(output, len(parts))
    _check_own(file, paths)
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        own = _unsplit(file) if number == 0 else {}
        head = own | split_values(number, len(parts), len(file.tensors))
        copied(path, head, [change.tensor for change in part], progress)
    return paths


def merge_parts(file: ModelFile, output: Path, progress: Progress = no_progress) -> None:
    """One file of all parts of a model; UsageError for one that has no parts."""
    if len(file.paths) < 2:
        raise UsageError(f"{file.path}: wanted a part of a split model; it is whole")
    _check_own(file, [output])
    copied(output, _unsplit(file), [*file.tensors.values()], progress)
