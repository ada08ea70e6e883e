"""What a program is fed: weights, and the values of a step's inputs.

Knows arrays; nothing of programs or of what the graph does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.errors import WeightsError
from graphml.ir.activation_blocks import ACTIVATIONS
from graphml.ir.dtype import dtype
from graphml.ir.op import Array
from graphml.passes.lora import FACTORS
from graphml.weights import ModelFile, Tensor


def write(feed: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    """Write the values of a step, from the first on, into those inputs that the graph has."""
    for name, values in inputs.items():
        if name in feed:
            feed[name][: len(values)] = values


def write_factors(feed: Mapping[str, Array], options: CompileOptions, n_rows: int) -> None:
    """Write the factors of the options' adapters in each row of a step, if the graph has that input."""
    if FACTORS in feed:
        feed[FACTORS][:n_rows] = options.factors


def write_blocks(feed: Mapping[str, Array], name: str, sequence: int, blocks: Array) -> None:
    """Write a sequence's row of a block table, if the graph has it; what is behind the blocks is not read."""
    if name in feed:
        feed[name][sequence, : len(blocks)] = blocks


def output_rows(counts: Array, which: str) -> Array:
    """The numbers of the output rows of sequences that have so many each."""
    ends = np.cumsum(counts, dtype=np.int32)
    return {"all": np.arange(ends[-1], dtype=np.int32), "first": ends - counts, "last": ends - 1}[which]


def graph_arrays(file: ModelFile) -> dict[str, Array]:
    """Name -> array of a file's tensors, as the graph holds their dtypes; WeightsError where data are not."""
    if file.header_only:
        return _Absent(file.path)
    for name, tensor in file.tensors.items():
        if tensor.dtype == ACTIVATIONS:  # which graphs have in another layout than ggml, see there
            raise WeightsError(f"{file.path}: tensor {name!r}: wanted a format of weights, got {ACTIVATIONS}")
    return {name: as_graph_array(tensor) for name, tensor in file.tensors.items()}


class _Absent(dict[str, Array]):
    """The arrays of a file of which the header alone was read: there are none."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, name: str) -> Array:
        raise WeightsError(
            f"{self._path}: tensor {name!r}: the header of the file alone was read, not its data"
        )


def as_graph_array(tensor: Tensor) -> Array:
    """A tensor's bytes as the graph holds its dtype, without a copy."""
    kind = dtype(tensor.dtype)
    if kind.numpy is not None:
        return tensor.data.view(kind.numpy).reshape(tensor.shape)
    return tensor.data.reshape(*tensor.shape[:-1], -1)
