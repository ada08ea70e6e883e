"""What a program is fed: weights, and ids with where they go in a cache and the output rows of them.

Knows arrays and a cache; nothing of programs or of what the graph does with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.compiler.top_k_outputs import SAMPLING_SETTINGS
from graphml.errors import WeightsError
from graphml.ir.activation_blocks import ACTIVATIONS
from graphml.ir.cell_groups import groups_among
from graphml.ir.dtype import dtype
from graphml.ir.op import Array
from graphml.passes.lora import FACTORS
from graphml.runtime.paged_cache import PagedCache
from graphml.weights import ModelFile, Tensor

Settings: TypeAlias = Mapping[int, Sequence[float]]
"""Sequence -> how its next token is sampled, see `graphml.compiler.top_k_outputs.SAMPLING_SETTINGS`."""


def fill(
    feed: Mapping[str, Array],
    ids: Mapping[int, Array],
    cache: PagedCache,
    which: str,
    settings: Settings | None = None,
) -> dict[str, int]:
    """Make room for ids and write a step's inputs; the step's dims. which: the output rows.

    Sequences of a cache without source texts have empty ones; those without settings get the top id.
    """
    given = cache.append_all({sequence: len(one) for sequence, one in ids.items()})
    n_program = cache.n_program(len(ids))
    rows = {next(iter(ids)): 0} if n_program == 1 else {sequence: sequence for sequence in ids}
    counts = np.array([len(one) for one in ids.values()], np.int32)
    lengths = cache.lengths if n_program > 1 else [cache.lengths[sequence] for sequence in ids]
    read = [0] * n_program if cache.source is None else cache.source.lengths
    write(
        feed,
        {
            "tokens": np.concatenate(list(ids.values())),
            "positions": given["positions"],
            "cells": given["cells"],
            "sequences": given["sequences"] if n_program > 1 else np.zeros_like(given["sequences"]),
            "output_rows": (outputs := output_rows(counts, which)),
            "lengths": np.array(lengths, np.int32),
            "source_lengths": np.array(read, np.int32),
        },
    )
    if SAMPLING_SETTINGS in feed:
        for row, sequence in enumerate(ids):
            feed[SAMPLING_SETTINGS][row] = (settings or {}).get(sequence, 0.0)
    _feed_table(feed, "block_table", rows, cache.table, cache)
    groups = groups_among(feed)
    for group in groups:
        table = cache.of_group(group).table
        _feed_table(feed, group.input("block_table"), rows, table, cache)
        blocks = table[given["sequences"], given["positions"] // cache.block_size]
        cells = blocks * np.int32(cache.block_size) + given["positions"] % cache.block_size
        write(feed, {group.input("cells"): cells})
    if cache.source is not None:
        _feed_table(feed, "source_table", rows, cache.source.table, cache.source)
    n_tokens = len(given["positions"])
    return {"T": n_tokens, "O": len(outputs), "B": table_width(feed), **cache.sizes(groups, n_program)}


def write(feed: Mapping[str, Array], given: Mapping[str, Array]) -> None:
    """Write the values of a step, from the first on, into those inputs that the graph has."""
    for name, values in given.items():
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


def table_width(feed: Mapping[str, Array]) -> int:
    """How many blocks a row of the graph's block tables has; 0 without any."""
    for name, array in feed.items():  # no generator: an interrupt that meets its end would be lost
        if name.startswith("block_table"):
            return int(array.shape[1])
    return 0


def output_rows(counts: Array, which: str) -> Array:
    """The numbers of the output rows of sequences that have so many each."""
    ends = np.cumsum(counts, dtype=np.int32)
    return {"all": np.arange(ends[-1], dtype=np.int32), "first": ends - counts, "last": ends - 1}[which]


def _feed_table(
    feed: Mapping[str, Array], name: str, rows: Mapping[int, int], table: Array, cache: PagedCache
) -> None:
    """Write the blocks that hold some sequences, each into its row, if the graph has such an input."""
    for sequence, row in rows.items():
        n_blocks = -(-cache.lengths[sequence] // cache.block_size)
        write_blocks(feed, name, row, table[sequence, :n_blocks])


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
