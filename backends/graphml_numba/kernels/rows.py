"""Rows of stored formats as values: `dequantize`, and `get_rows` of tables and caches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.shape import Shape
from graphml_numba.helpers import F32, Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.formats import SCRATCH, RowFormat, has_format, row_format

Maker = Callable[..., Callable[..., Any]]


def refuses_rows(node: Node) -> str | None:
    """Why rows are not decoded."""
    kind = node.inputs[0].dtype.name
    return None if has_format(kind) else f"no kernel decodes {kind}"


def stored_rows(value: Node, lead: Shape, row: Shape) -> ArrayValue:
    """A stored value as [rows, words of a row]: its leading dimensions joined, and those of a row."""
    n = joined(row, value.name).factor
    words = value.dtype.bytes_for(n) if value.dtype.is_format else n
    return ArrayValue(value, (joined(lead, value.name), words))


def call_dequantize(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `dequantize`."""
    x, lead = node.inputs[0], node.shape[:-1]
    arrays = {"out": stored_rows(node, lead, node.shape[-1:]), "x": stored_rows(x, lead, x.shape[-1:])}
    kernel = make(row_format(x.dtype.name))
    return array_step(kernel, arrays, joined(lead, node.name), name=f"dequantize-{x.dtype.name}")


@kernel_of("dequantize", call=call_dequantize, refuses=refuses_rows)
@functools.cache
def dequantize(form: RowFormat) -> Callable[..., Any]:
    """out = the decoded rows of x."""
    word, decode = form.word, form.decode

    def kernel(out: Array, x: Array, begin: int, end: int) -> None:
        rows, s = x.view(word), np.empty(SCRATCH, F32)
        for row in range(begin, end):
            decode(rows[row], out[row], s)

    return kernel


def call_get_rows(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `get_rows`; a row of several dimensions is one of as many elements."""
    table, ids = node.inputs
    row = table.shape[1:]
    rows = joined(ids.shape, ids.name)
    arrays = {
        "out": stored_rows(node, ids.shape, row),
        "table": stored_rows(table, table.shape[:1], row),
        "ids": ArrayValue(ids, (rows,)),
    }
    kernel = make(row_format(table.dtype.name))
    return array_step(kernel, arrays, rows, name=f"get_rows-{table.dtype.name}")


@kernel_of("get_rows", call=call_get_rows, refuses=refuses_rows)
@functools.cache
def get_rows(form: RowFormat) -> Callable[..., Any]:
    """out = the decoded rows of a table by their numbers; zeros for a number that no row has."""
    word, decode = form.word, form.decode

    def kernel(out: Array, table: Array, ids: Array, begin: int, end: int) -> None:
        rows, s = table.view(word), np.empty(SCRATCH, F32)
        for i in range(begin, end):
            if 0 <= ids[i] < rows.shape[0]:
                decode(rows[ids[i]], out[i], s)
            else:
                out[i] = F32(0)

    return kernel
