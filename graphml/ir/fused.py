"""Fused ops: ops whose shape rule and meaning are those of a decomposition into plain ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphml.errors import GraphError
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Attributes, Op, Sample, Type


def decomposition(op: Op, inputs: Sequence[Type], attributes: Attributes) -> Graph:
    """What a fused op stands for: a graph from inputs `operand_0`, ... to the output `result`."""
    if op.decompose is None:
        raise GraphError(f"[{op.name}] is a plain op")
    g = Builder()
    operands = [g.input(f"operand_{i}", kind.dtype, kind.shape) for i, kind in enumerate(inputs)]
    return g.finish(result=op.decompose(g, *operands, **attributes))


def fused_op(
    name: str,
    decompose: Callable[..., Node],
    samples: Callable[[], list[Sample]],
    attributes: Mapping[str, Attribute | None] | None = None,
    inplace: tuple[int, ...] = (),
    writes: int | None = None,
) -> Op:
    """A fused op; `decompose(g, *inputs, **attributes)` builds the same from plain ops.

    inplace, writes: as of `Op`.
    """

    def infer(inputs: Sequence[Type], at: Attributes) -> Type:
        return decomposition(op, inputs, at).outputs["result"].type

    op = Op(
        name, "fused", infer, None, samples, attributes or {}, inplace, writes=writes, decompose=decompose
    )
    return op
