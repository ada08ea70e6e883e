"""What a model computes from its parameters alone, by graphml's ops: for checkpoints, which hold parameters.

Knows single nodes; nothing of tokens.
"""

from __future__ import annotations

import numpy as np

from graphml.authoring.importing.aten import MOVES
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, Weight
from graphml.authoring.importing.places import is_held
from graphml.authoring.importing.walked import Walked

UNARY = {
    "silu": "silu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "log": "log",
    "floor": "floor",
    "round": "round",
    "neg": "neg",
    "abs": "absolute",
    "sqrt": "sqrt",
    "square": "sqr",
    "softplus": "softplus",
}
"""Torch's name of a function of each number -> graphml's."""


def computed(walk: Walked, node: TracedNode, name: str) -> Expression | None:
    """The value of a parameter's node as an expression; None where a file of weights has it."""
    description = walk.dependence.description
    if not description.config or name not in description.nodes or not walk.dependence.is_parameters(name):
        return None
    return None if is_held(walk.dependence, walk.weight(name)) else _value(walk, node, name)


def _value(walk: Walked, reader: TracedNode, name: str) -> Expression:
    """A parameter, or what an op makes of some. reader: the node of tokens, whose place it has."""
    description = walk.dependence.description
    node = description.nodes.get(name)
    if node is None or is_held(walk.dependence, walk.weight(name)):
        weight = walk.weight(name)
        shape = tuple(size for size in weight.shape if size != 1) or weight.shape[:1]
        return _kept(walk, reader, "parameter", (), shape, weights={"weight": Weight(name, shape)})
    op, args = op_name(node), node.args
    if op in MOVES:
        inner = _value(walk, reader, node.operands[0])
        if int(np.prod(walk.weight(name).shape)) != inner.size or max(inner.shape) != inner.size:
            raise ValueError(f"{op} of what is computed from parameters")
        return inner
    if op in UNARY:
        inner = _value(walk, reader, node.operands[0])
        return _kept(walk, reader, UNARY[op], (inner,), inner.shape)
    if op == "sum" and len(walk.weight(node.operands[0]).shape) == 1:
        inner = _value(walk, reader, node.operands[0])
        return _kept(walk, reader, "sum_rows", (inner,), (1,))
    if op not in ("add", "sub", "mul", "div") or args.get("alpha", 1) != 1:
        raise ValueError(f"{op} of parameters, which no change of tensors is")
    return _of_two(walk, reader, op, (args["self"], args["other"]))


def _of_two(walk: Walked, reader: TracedNode, op: str, operands: tuple[object, object]) -> Expression:
    """A sum, difference, product or quotient of two parameters, or of one and a number."""
    a, b = operands
    number_a, number_b = walk.number(a), walk.number(b)
    if number_b is not None:
        x = _value(walk, reader, a["node"])  # type: ignore[index]
        factor, offset = {"add": (1.0, number_b), "sub": (1.0, -number_b), "mul": (number_b, 0.0),
                          "div": (1.0 / (number_b or 1.0), 0.0)}[op]  # fmt: skip
        return _scaled(walk, reader, x, factor, offset)
    if number_a is not None and op != "div":
        x = _value(walk, reader, b["node"])  # type: ignore[index]
        factor, offset = {"add": (1.0, number_a), "sub": (-1.0, number_a), "mul": (number_a, 0.0)}[op]
        return _scaled(walk, reader, x, factor, offset)
    if number_a is not None:
        raise ValueError("a number divided by a parameter")
    first, second = (_value(walk, reader, each["node"]) for each in (a, b))  # type: ignore[index]
    is_smaller = (first.size, len(first.shape)) < (second.size, len(second.shape))
    if is_smaller and op in ("add", "mul"):
        first, second, is_smaller = second, first, False
    if is_smaller or (first.shape != second.shape and second.size != 1):
        raise ValueError(f"{op} of two parameters of other shapes")
    return _kept(walk, reader, op, (first, second), first.shape)


def _scaled(walk: Walked, reader: TracedNode, x: Expression, factor: float, offset: float) -> Expression:
    return _kept(walk, reader, "scale", (x,), x.shape, numbers={"factor": factor, "offset": offset})


def _kept(
    walk: Walked,
    reader: TracedNode,
    op: str,
    inputs: tuple[Expression, ...],
    shape: tuple[int, ...],
    weights: dict[str, Weight] | None = None,
    numbers: dict[str, float] | None = None,
) -> Expression:
    expr = Expression(op, inputs, shape, reader.path, reader.told, weights or {}, numbers or {})
    return walk.select.kept(expr)
