"""What a file with ops of one's own imports: `op`, `fused`, `sample`, types; see docs/own-ops.md."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.dtype import F16, F32, I32, DType, dtype
from graphml.ir.op import Type
from graphml.ir.op_table import forget
from graphml.ir.ops.rules import ROWS, f32, i32
from graphml.ir.own_op import OwnOp, op, sample
from graphml.ir.shape import Symbol
from graphml.passes.own_fusion import fused

__all__ = [
    "F16", "F32", "I32", "ROWS", "DType", "OwnOp", "ShapeError", "Symbol", "Type", "dtype", "f32", "forget",
    "fused", "i32", "op", "sample",
]  # fmt: skip
