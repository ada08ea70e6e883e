"""How two GGUF files differ: keys, and tensors by type, shape and values.

Knows metadata and tensors; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

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
        where = ""
        if values[0] == values[1]:  # texts and arrays may be alike where they begin
            where = _first(left.metadata[key], right.metadata[key])
            values = [f"{values[0]}, {where}", values[1]] if where else values
        if where or values[0] != values[1]:
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


def _first(left: Any, right: Any) -> str:
    """Where two values of a type begin to differ; "" where they do not."""
    if not isinstance(left, str | list):
        return ""  # was shown whole
    pairs = enumerate(zip_longest(left, right))
    index = next((i for i, (a, b) in pairs if a != b and not (a != a and b != b)), None)
    if index is None:
        return ""
    if isinstance(left, str):
        return f"from character {index} on {left[index:][:SHOWN]!r} and {right[index:][:SHOWN]!r}"
    return f"at {index} {str(left[index])[:SHOWN]!r} and {str(right[index])[:SHOWN]!r}"


def distance(left: Tensor, right: Tensor) -> str:
    """The NMSE of two tensors' values, and the largest difference."""
    first, second = (tensor.numpy().astype(np.float64) for tensor in (left, right))
    power, error = float((first**2).sum()), first - second
    nmse = float((error**2).sum()) / power if power else float(np.abs(error).max() > 0)
    return f"NMSE {nmse:.1e}, at most {np.abs(error).max():.1e}"
