"""`rope_set_rows`: rotary embedding of keys and the write to the cache, rounded to its dtype."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.index import set_rows
from graphml.ir.ops.position import rope
from graphml.ir.ops.rules import ROWS, distinct_or_outside, f32, i32, partly_below
from graphml.passes.fusion import Fusion


def _decompose(
    g: Builder, state: Node, x: Node, table: Node, cells: Node, mode: str, distinct: bool = False
) -> Node:
    """State [C, head, d] of a cache's dtype; x [T, head, d]; table [T, n_rot / 2, 2]; cells [T]."""
    rotated = g.rope(x, table, mode)
    return g.call(set_rows, state, rotated, cells, to_dtype=state.dtype.name, distinct=distinct)


def _samples() -> list[Sample]:
    ways = ((True, distinct_or_outside), (False, partly_below(6)))
    return [
        Sample(
            (f32(15, 3, d), f32(ROWS, 3, d), f32(ROWS, half, 2), i32(ROWS)),
            {"mode": mode, "distinct": distinct},
            {3: fill},
        )
        for (d, half), (distinct, fill) in (
            *zip(((64, 32), (80, 16)), ways, strict=True),
            ((64, 32), ways[1]),
        )
        for mode in ("norm", "neox")
    ]


rope_set_rows = fused_op("rope_set_rows", _decompose, _samples, {"mode": "norm", "distinct": False}, writes=0)

FUSION = Fusion(
    "rope_cache",
    find=lambda state, x, table, cells: set_rows(state, rope(x, table), cells),
    replace=rope_set_rows,
)
