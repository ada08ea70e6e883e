"""How two GGUF files differ: keys, and tensors by type, shape and values.

Knows metadata and tensors; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphml.weights import ModelFile, Tensor

SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class FileDifference:
    """what: key or tensor; name; left and right: what each file has, "" for nothing."""

    what: str
    name: str
    left: str
    right: str


def file_differences(left: ModelFile, right: ModelFile) -> Iterator[FileDifference]:
    """Keys in the first file's order, then those of the second alone; then tensors alike."""
    for key in _names([*left.metadata], [*right.metadata]):
        values = [_value(file, key) for file in (left, right)]
        if values[0] != values[1] or (values[0] and left.metadata[key] != right.metadata[key]):
            if values[0] == values[1]:  # of arrays that are alike where they begin
                values = [f"{values[0]}, {_first(left, right, key)}", values[1]]
            yield FileDifference("key", key, *values)
    for name in _names([*left.tensors], [*right.tensors]):
        pair = left.tensors.get(name), right.tensors.get(name)
        kinds = [f"{tensor.dtype} {list(tensor.shape)}" if tensor is not None else "" for tensor in pair]
        first, second = pair
        if first is None or second is None or first.shape != second.shape:
            yield FileDifference("tensor", name, *kinds)
        elif first.dtype != second.dtype or not np.array_equal(first.data, second.data):
            yield FileDifference("tensor", name, kinds[0], f"{kinds[1]}, {distance(first, second)}")


def _names(left: list[str], right: list[str]) -> list[str]:
    return [*dict.fromkeys([*left, *right])]


def _value(file: ModelFile, key: str) -> str:
    if key not in file.metadata:
        return ""
    summary = file.metadata.describe(key)
    return str(summary).removeprefix(f"{key}: ")[: SHOWN * 2]


def _first(left: ModelFile, right: ModelFile, key: str) -> str:
    pairs = zip(left.metadata[key], right.metadata[key], strict=True)
    index, first, second = next((i, a, b) for i, (a, b) in enumerate(pairs) if a != b)
    return f"at {index} {str(first)[:SHOWN]!r} and {str(second)[:SHOWN]!r}"


def distance(left: Tensor, right: Tensor) -> str:
    """The NMSE of two tensors' values, and the largest difference."""
    first, second = (tensor.numpy().astype(np.float64) for tensor in (left, right))
    power, error = float((first**2).sum()), first - second
    nmse = float((error**2).sum()) / power if power else float(np.abs(error).max() > 0)
    return f"NMSE {nmse:.1e}, at most {np.abs(error).max():.1e}"
