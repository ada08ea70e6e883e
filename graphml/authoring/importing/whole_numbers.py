"""Whole numbers that are computed from ids, such as hashes of tokens: exact as float32, or refused.

Knows expressions; nothing of tables.
"""

from __future__ import annotations

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, View
from graphml.authoring.importing.walked import Walked

LARGEST = 1 << 24  # float32 has each whole number up to here
COUNTED = 1 << 22  # tokens of a text at most
KEPT = ("shift", "reshape", "columns", "concat", "where")  # whose numbers are their operands', or 0


def remainder(walk: Walked, node: TracedNode) -> View:
    """The remainder of whole numbers by a positive one."""
    of, x = walk.number(node.args["other"]), walk.taken(node.args["self"]["node"])
    if not node.dtype.startswith("int") or of is None or of <= 0 or of != int(of):
        raise ValueError("a remainder that is not of whole numbers by a positive constant")
    check_whole(walk, x, int(of))
    return walk.made(node, "remainder", (x,), x.shape, numbers={"of": int(of)})


def check_whole(walk: Walked, x: Expression, beyond: int = 0) -> None:
    """ValueError unless what leads to these numbers is whole, and exact with `beyond` more."""
    low, high = _bounds(walk, x)
    _checked(low - beyond, high + beyond)


def _checked(low: float, high: float) -> tuple[float, float]:
    largest = max(-low, high)
    if largest > LARGEST:
        raise ValueError(f"whole numbers up to {largest:.0f}: float32 has each one up to {LARGEST}")
    return low, high


def _bounds(walk: Walked, x: Expression) -> tuple[float, float]:
    """The smallest and largest of whole numbers; ValueError where they are others, or not known."""
    if x.op == "ids":
        return 0.0, float(_vocabulary(walk) - 1)
    if x.op in ("equal", "less", "less_equal"):
        return 0.0, 1.0
    if x.op == "running_sum" and _bounds(walk, x.inputs[0]) == (0.0, 1.0):  # counts tokens
        return 0.0, float(COUNTED)
    if x.op == "remainder":
        return 0.0, x.numbers["of"] - 1.0
    if x.op in KEPT:
        inner = [_bounds(walk, each) for each in x.inputs[x.op == "where" :]]
        return min(0.0, *(low for low, _ in inner)), max(0.0, *(high for _, high in inner))
    if x.op == "scale" and not x.numbers["factor"] % 1 and not x.numbers["offset"] % 1:
        ends = [end * x.numbers["factor"] for end in _checked(*_bounds(walk, x.inputs[0]))]
        _checked(min(ends), max(ends))
        return _checked(min(ends) + x.numbers["offset"], max(ends) + x.numbers["offset"])
    if x.op in ("add", "sub", "mul") and len(x.inputs) == 2:
        a, b = (_bounds(walk, each) for each in x.inputs)
        ends = {
            "add": [a[0] + b[0], a[1] + b[1]],
            "sub": [a[0] - b[1], a[1] - b[0]],
            "mul": [first * second for first in a for second in b],
        }[x.op]
        return _checked(min(ends), max(ends))
    raise ValueError(f"the number of a row by {x.op}: wanted sums, products and remainders of ids")


def most_tokens(walk: Walked, x: Expression, rows: int) -> int | None:
    """The longest text whose counted tokens have rows of a table; None for rows by something else."""
    low, high = _bounds(walk, x)
    return rows - 1 - int(high - COUNTED) if high >= COUNTED > -low else None


def _vocabulary(walk: Walked) -> int:
    """How many ids there are: rows of the smallest table that is read by them."""
    description = walk.dependence.description
    counts = [
        walk.weight(node.args["weight"]["node"]).shape[0]
        for node in description.nodes.values()
        if op_name(node) == "embedding" and node.args["indices"]["node"] in description.inputs
    ]
    if not counts:
        raise ValueError("no table is read by the ids themselves, which would say how many there are")
    return min(counts)
