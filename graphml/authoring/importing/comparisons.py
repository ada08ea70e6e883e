"""Torch's ops that compare values or choose among them: `lt`, `eq`, `maximum`, `where`, `masked_fill`, ...

A truth value is a number, 1 or 0. Each handler reads its operands from a walk and returns the node's value; a
ValueError says why it cannot. Knows ops; nothing of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, View
from graphml.authoring.importing.operations import combined, operand
from graphml.authoring.importing.walked import Walked

# Torch's name -> graphml's, and whether the operands change places.
COMPARED = {
    "lt": ("less", False),
    "le": ("less_equal", False),
    "gt": ("less", True),
    "ge": ("less_equal", True),
    "eq": ("equal", False),
    "maximum": ("maximum", False),
    "minimum": ("minimum", False),
}


def compared(walk: Walked, node: TracedNode) -> View:
    """A comparison, or the larger or smaller of two values, or of a value and a number."""
    op, turned = COMPARED[op_name(node)]
    a, b = node.args["self"], node.args["other"]
    number_a, number_b = walk.number(a), walk.number(b)
    number = number_b if number_a is None else number_a
    if number is None:
        first, second = (b, a) if turned else (a, b)
        return combined(walk, node, op, first["node"], second["node"])
    x = walk.taken(a["node"] if number_a is None else b["node"])
    if op.startswith("less") and turned is (number_a is None):  # number < x is -x < -number
        x, number = _negated(walk, node, x), -number
    return walk.made(node, op, (x,), x.shape, numbers={"number": number})


def _negated(walk: Walked, node: TracedNode, x: Expression) -> Expression:
    return walk.select.kept(Expression("neg", (x,), x.shape, node.path, node.told))


def _inverted(walk: Walked, node: TracedNode, mask: Expression) -> Expression:
    """1 where the mask is 0, else 0."""
    numbers = {"number": 0.0}
    return walk.select.kept(Expression("equal", (mask,), mask.shape, node.path, node.told, numbers=numbers))


def chosen(walk: Walked, node: TracedNode) -> View:
    """One value where a mask of tokens is true, else the other, of which one may be a number."""
    if op_name(node) == "masked_fill":
        condition, yes, no = (node.args[name] for name in ("mask", "value", "self"))
    else:
        condition, yes, no = (node.args[name] for name in ("condition", "self", "other"))
    if not walk.is_walked(condition["node"]):
        raise ValueError("chooses by a mask that does not depend on tokens")
    mask = operand(walk, node, condition["node"])
    if walk.number(yes) is not None or not walk.is_walked(yes["node"]):
        mask, yes, no = _inverted(walk, node, mask), no, yes
    if walk.number(yes) is not None or not walk.is_walked(yes["node"]):
        raise ValueError("chooses between numbers or parameters: wanted a value of tokens")
    a, number = operand(walk, node, yes["node"]), walk.number(no)
    if number is None and walk.is_walked(no["node"]):
        b = operand(walk, node, no["node"])
        if a.size < b.size:
            mask, a, b = _inverted(walk, node, mask), b, a
        return walk.made(node, "where", (mask, a, b), a.shape)
    if mask.size > a.size:
        raise ValueError("a value is repeated along the mask that chooses it")
    if number is None:
        raise ValueError("chooses between a value of tokens and a parameter")
    return walk.made(node, "where", (mask, a), a.shape, numbers={"number": number})


HANDLERS: Mapping[tuple[str, ...], Callable[[Walked, TracedNode], View]] = {
    tuple(COMPARED): compared,
    ("where", "masked_fill"): chosen,
}
