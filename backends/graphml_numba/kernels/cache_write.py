"""Writes of cells of a cache: `set_rows`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall, cache_type

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_numba.helpers import I32, Array, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.cache_formats import NUMBERS, Encode, cell_format


def call_set_rows(node: Node, make: Callable[..., Callable[..., Any]]) -> KernelCall:
    """The call of the kernel of `set_rows`: a cell is [heads, words of a head]."""
    x, cells = node.inputs[1:]
    heads, head = joined(node.shape[1:-1], node.name), node.shape[-1:] if len(node.shape) > 1 else (1,)
    arrays = {
        "cache": ArrayValue(node, (node.shape[0], heads, as_stored(node, head).shape[0])),
        "x": ArrayValue(x, (x.shape[0], heads, *head)),
        "cells": ArrayValue(cells, cells.shape),
    }
    rows = joined(x.shape[:-1] if len(x.shape) > 1 else x.shape, node.name)
    looks = not node.attributes.get("distinct", False) and bounds(x.shape)[0] > 1
    kernel = make(*cell_format(node.dtype.name), looks)
    return array_step(kernel, arrays, rows, writes=("cache",), name=f"set_rows-{node.dtype.name}")


@helper
def is_overwritten(cells: Array, t: int) -> bool:
    """Whether a later token has the cell of this one."""
    for other in range(t + 1, cells.shape[0]):  # noqa: SIM110 - `any` is slow in numba
        if cells[other] == cells[t]:
            return True
    return False


@kernel_of("set_rows", call=call_set_rows, refuses=lambda node: cache_type(node.inputs[0]))
@functools.cache
def set_rows(word: type[np.generic], encode: Encode, looks: bool) -> Callable[..., Any]:
    """cache[cells[t]] = x[t], in the cache's format; a token whose cell is outside is not written.

    looks: of equal cells the last token's row is written; without it cells that are written are distinct.
    """

    def kernel(cache: Array, x: Array, cells: Array, begin: int, end: int) -> None:
        stored, numbers = cache.view(word), np.empty(NUMBERS, I32)
        for row in range(begin, end):
            t, head = row // x.shape[1], row % x.shape[1]
            if looks and is_overwritten(cells, t):
                continue
            if 0 <= cells[t] < cache.shape[0]:
                encode(x[t, head], stored[cells[t], head], numbers)

    return kernel
