"""Where a dimension known only at run time may be: first, and nothing works along it but element by element.

Rows lie one after the other, so that a shorter step is the leading part of a longer one. With a symbol
behind the first dimension a value would lie apart or together as each backend likes, and a sum over it would
count rows that are not there. Knows types and families of ops.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.node import Node
from graphml.ir.op import Op, Type
from graphml.ir.ops.layout import reshape
from graphml.ir.ops.leaf import input_leaf, state_leaf
from graphml.ir.shape import Symbol

_ADVICE = (
    "it must be the first and stay it; what mixes tokens is attention, a recurrent op or a state, which know "
    "the tokens of one text and their order"
)


def check_symbols(op: Op, result_type: Type) -> None:
    """Refuse a result with a symbol that is not its first dimension."""
    for kind in result_type.parts or (result_type,):
        for dim in kind.shape[1:]:
            if type(dim) is Symbol:
                raise ShapeError(f"[{op.name}] {kind}: dimension {dim} is known only at run time; {_ADVICE}")


def check_lengths(op: Op, nodes: Sequence[Node]) -> None:
    """Refuse a number for each token, f32 [T], where an op works along the last dimension."""
    if op.family == "elementwise" or op is reshape:
        return
    for i, node in enumerate(nodes):
        shape = node.type.shape
        if len(shape) == 1 and type(shape[0]) is Symbol and node.type.dtype is F32:
            raise ShapeError(
                f"[{op.name}] operand {i} is %{node.name}, {node.type}: the op works along dimension "
                f"{shape[0]}, known only at run time; wanted a row for each token (g.reshape(x, 1) makes "
                f"[{shape[0]}, 1]); {_ADVICE}"
            )


def check_leaf(op: Op, name: str, kind: Type) -> None:
    """Refuse a leaf whose symbols are not where they may be; i32 [S, B] is a table of blocks."""
    if (
        op is input_leaf
        and kind.dtype is I32
        and len(kind.shape) == 2
        and all(type(dim) is Symbol for dim in kind.shape)
    ):
        return
    allowed = 1 if op in (input_leaf, state_leaf) else 0
    for dim in kind.shape[allowed:]:
        if type(dim) is Symbol:
            where = _ADVICE if allowed else "a weight has the shape of its tensor"
            raise ShapeError(
                f"[{op.name}] {name!r} {kind}: dimension {dim} is known only at run time; {where}"
            )
