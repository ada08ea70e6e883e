"""Fused ops: their shape rule and reference are those of a decomposition into plain ops.

A fused op may have several results; a decomposition then has an output for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from graphml.errors import GraphError
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Attributes, Op, Sample, Type

_KEPT = 256  # decompositions of one op: a model has as many kinds of a fused node as kinds of layers
_decompositions: WeakKeyDictionary[Op, dict[Any, Graph]] = WeakKeyDictionary()
_latest: tuple[Op | None, tuple[Type, ...], Attributes | None, Graph | None] = (None, (), None, None)
"""What was asked for last: a node is made of it, and then looked at."""


def decomposition(op: Op, inputs: Sequence[Type], attributes: Attributes) -> Graph:
    """The decomposition of a fused op: a graph from inputs `operand_0`, ... to the output `result`.

    With several results the outputs are `result_0`, ...; `results` returns them in order. The same graph for
    the same types and attributes, which all layers of a model have: its nodes' source lines are those of the
    first call.
    """
    if op.decompose is None:
        raise GraphError(f"[{op.name}] is a plain op")
    global _latest
    types = tuple(inputs)
    of, kinds, latest_attributes, graph = _latest
    if graph is not None and of is op and latest_attributes is attributes and kinds == types:
        return graph
    known = _decompositions.setdefault(op, {})
    key = types, repr(sorted(attributes.items()))  # as text: 1, 1.0 and True are equal
    decomposed = known.get(key)
    if decomposed is None:
        if len(known) >= _KEPT:
            known.clear()
        decomposed = known[key] = _decomposed(op.decompose, inputs, attributes)
    _latest = op, types, attributes, decomposed
    return decomposed


def _decomposed(decompose: Callable[..., Any], inputs: Sequence[Type], attributes: Attributes) -> Graph:
    g = Builder()
    operands = [g.input(f"operand_{i}", kind.dtype, kind.shape) for i, kind in enumerate(inputs)]
    result: Node | tuple[Node, ...] = decompose(g, *operands, **attributes)
    return g.finish(
        **as_outputs(result if isinstance(result, tuple) else (result,), isinstance(result, tuple))
    )


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
