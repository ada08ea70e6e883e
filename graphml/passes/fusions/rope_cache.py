"""`rope_set_rows`: rotary embedding of keys and the write to the cache, rounded to its dtype."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.index import set_rows
from graphml.ir.ops.position import rope
from graphml.ir.ops.rules import ROWS, distinct, f32, i32
from graphml.passes.fusion import Fusion


def _decompose(g: Builder, state: Node, x: Node, table: Node, cells: Node, mode: str) -> Node:
    """State [C, head, d] of a cache's dtype; x [T, head, d]; table [T, n_rot / 2, 2]; cells [T]."""
    return g.call(set_rows, state, g.rope(x, table, mode), cells, to_dtype=state.dtype.name)


def _samples() -> list[Sample]:
    return [
        Sample((f32(15, 3, d), f32(ROWS, 3, d), f32(ROWS, half, 2), i32(ROWS)), {"mode": mode}, {3: distinct})
        for d, half in ((64, 32), (80, 16))
        for mode in ("norm", "neox")
    ]


rope_set_rows = fused_op("rope_set_rows", _decompose, _samples, {"mode": "norm"}, writes=0)

FUSION = Fusion(
    "rope_cache",
    find=lambda state, x, table, cells: set_rows(state, rope(x, table), cells),
    replace=rope_set_rows,
)
