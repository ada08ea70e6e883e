"""Rows by index: embeddings, wanted rows, cache writes."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import Lowering, Step, row_bytes, rows, width


def _refuses_get_rows(node: Node) -> str | None:
    return None if len(node.inputs[0].shape) == 2 else f"{node.inputs[0].name} has rows of several dimensions"


def _lower_get_rows(node: Node, threads: int) -> list[Step]:
    table, indices = node.inputs
    kind = table.dtype.name
    arguments = {
        "table": table,
        "indices": indices,
        "out": node,
        "k": width(table),
        "row_bytes": row_bytes(table),
        "n_table_rows": bounds(table.shape)[0],
        "out_stride": row_bytes(node),
        "rows": rows(indices.shape),
    }
    return [
        Step(
            KernelRef(f"get_rows-{kind}", "graphml_cpu.kernels.get_rows", "make_get_rows", (kind,)), arguments
        )
    ]


def _lower_set_rows(node: Node, threads: int) -> list[Step]:
    state, x, cells = node.inputs
    kind = state.dtype.name
    n = max_elements((1, *x.shape[1:]))
    arguments = {"x": x, "cells": cells, "cache": node, "n": n, "x_stride": 4 * n, "rows": rows(x.shape[:1])}
    ref = KernelRef(f"cache_write-{kind}", "graphml_cpu.kernels.cache", "make_cache_write", (kind,))
    return [Step(ref, arguments, writes=("cache",))]


def _refuses_set_rows(node: Node) -> str | None:
    return None if bounds(node.shape)[1:] else f"{node.inputs[0].name} has no rows"


GET_ROWS = Lowering(("get_rows",), _lower_get_rows, refuses=_refuses_get_rows, replicable=True)
SET_ROWS = Lowering(("set_rows",), _lower_set_rows, refuses=_refuses_set_rows)
