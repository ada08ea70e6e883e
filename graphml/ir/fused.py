"""Fused ops: their shape rule and reference are those of a decomposition into plain ops.

A fused op may have several results; a decomposition then has an output for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphml.errors import GraphError
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Attributes, Op, Sample, Type


def decomposition(op: Op, inputs: Sequence[Type], attributes: Attributes) -> Graph:
    """The decomposition of a fused op: a graph from inputs `operand_0`, ... to the output `result`.

    With several results the outputs are `result_0`, ...; `results` returns them in order.
    """
    if op.decompose is None:
        raise GraphError(f"[{op.name}] is a plain op")
    g = Builder()
    operands = [g.input(f"operand_{i}", kind.dtype, kind.shape) for i, kind in enumerate(inputs)]
    made: Node | tuple[Node, ...] = op.decompose(g, *operands, **attributes)
    return g.finish(**as_outputs(made if isinstance(made, tuple) else (made,), isinstance(made, tuple)))


def as_outputs(results: Sequence[Node], several: bool) -> dict[str, Node]:
    """The outputs of a decomposition: `result`, or of an op with several `result_0`, ..."""
    return {f"result_{i}" if several else "result": node for i, node in enumerate(results)}


def results(plain: Graph) -> tuple[Node, ...]:
    """The results of a decomposition, in order."""
    return tuple(plain.outputs.values())


def fused_op(
    name: str,
    decompose: Callable[..., Node | tuple[Node, ...]],
    samples: Callable[[], list[Sample]],
    attributes: Mapping[str, Attribute | None] | None = None,
    inplace: tuple[int, ...] = (),
    writes: int | None = None,
    recurrent: bool = False,
) -> Op:
    """A fused op; `decompose(g, *inputs, **attributes)` builds the same from plain ops, a node per result.

    inplace, writes, recurrent: see `Op`.
    """

    def infer(inputs: Sequence[Type], at: Attributes) -> Type:
        plain = decomposition(op, inputs, at)
        kinds = [node.type for node in results(plain)]
        return kinds[0] if "result" in plain.outputs else Type.of_parts(kinds)

    op = Op(
        name, "fused", infer, None, samples, attributes or {}, inplace, writes=writes, recurrent=recurrent,
        decompose=decompose,
    )  # fmt: skip
    return op
