"""Writes of cells of a cache: `set_rows`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import Step, cache_type

from graphml.ir.node import Node
from graphml_numba.helpers import I32, Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.cache_formats import NUMBERS, Encode, cell_format


def call_set_rows(node: Node, make: Callable[..., Callable[..., Any]]) -> Step:
    """The call of the kernel of `set_rows`: a cell is [heads, words of a head]."""
    x, cells = node.inputs[1:]
    heads, head = joined(node.shape[1:-1], node.name), node.shape[-1:] if len(node.shape) > 1 else (1,)
    arrays = {
        "cache": ArrayValue(node, (node.shape[0], heads, as_stored(node, head).shape[0])),
        "x": ArrayValue(x, (x.shape[0], heads, *head)),
        "cells": ArrayValue(cells, cells.shape),
    }
    rows = joined(x.shape[:-1] if len(x.shape) > 1 else x.shape, node.name)
    kernel = make(*cell_format(node.dtype.name))
    return array_step(kernel, arrays, rows, writes=("cache",), name=f"set_rows-{node.dtype.name}")


@kernel_of("set_rows", call=call_set_rows, refuses=lambda node: cache_type(node.inputs[0]))
@functools.cache
def set_rows(word: type[np.generic], encode: Encode) -> Callable[..., Any]:
    """cache[cells[t]] = x[t], in the cache's format; a token whose cell is negative is not written."""

    def kernel(cache: Array, x: Array, cells: Array, begin: int, end: int) -> None:
        stored, numbers = cache.view(word), np.empty(NUMBERS, I32)
        for row in range(begin, end):
            t, head = row // x.shape[1], row % x.shape[1]
            if cells[t] >= 0:
                encode(x[t, head], stored[cells[t], head], numbers)

    return kernel
