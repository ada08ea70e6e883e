"""Elementwise ops, gates among them."""

from __future__ import annotations

from itertools import groupby

from graphml.ir.node import Node
from graphml.ir.shape import Dim
from graphml_gpu.dispatch import Context, Dispatch, Lowering, Scalar, number, rows
from graphml_gpu.kernels.elementwise.formulas import BINARY, GLU, UNARY, WITH_NUMBERS
from graphml_gpu.kernels.elementwise.operations import binary, unary, with_numbers
from graphml_gpu.lowering.groups import for_elements

_NUMBERS = {"scale": ("factor", "offset"), "clamp": ("low", "high"), "softcap": ("factor", "limit")}
_MOST_GROUPS = 4


def stretched(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> list[tuple[bool, tuple[Dim, ...]]]:
    """Neighbouring dimensions of a that b has, or is stretched along, as groups: the last first."""
    padded = (1,) * (len(a) - len(b)) + b
    pairs = [(wide == dim, wide) for wide, dim in zip(a, padded, strict=True) if wide != 1]
    groups = [
        (kept, tuple(dim for _, dim in some)) for kept, some in groupby(reversed(pairs), lambda pair: pair[0])
    ]
    return groups or [(True, ())]


def _unary(node: Node, context: Context) -> list[Dispatch]:
    count = rows(node.shape)
    constants, grid = for_elements(count)
    constants["FUNCTION"] = UNARY[node.op.name]
    return [Dispatch(unary, constants, {"x": node.inputs[0], "out": node}, {"n": count}, grid, node.op.name)]


def _with_numbers(node: Node, context: Context) -> list[Dispatch]:
    count = rows(node.shape)
    constants, grid = for_elements(count)
    constants["FUNCTION"] = WITH_NUMBERS[node.op.name]
    first, second = (number(node, name) for name in _NUMBERS[node.op.name])
    scalars: dict[str, Scalar] = {"n": count, "first": first, "second": second}
    return [
        Dispatch(with_numbers, constants, {"x": node.inputs[0], "out": node}, scalars, grid, node.op.name)
    ]


def _refuses_binary(node: Node) -> str | None:
    a, b = node.inputs
    if len(stretched(a.shape, b.shape)) > _MOST_GROUPS:
        return f"{b.name} is stretched in more than {_MOST_GROUPS} groups of dimensions"
    return None


def _binary(node: Node, context: Context) -> list[Dispatch]:
    a, b = node.inputs
    count = rows(node.shape)
    constants, grid = for_elements(count)
    groups = stretched(a.shape, b.shape)
    constants["FUNCTION"] = (BINARY | GLU)[node.op.name]
    constants["KEPT"] = tuple(kept for kept, _ in groups)
    scalars: dict[str, Scalar] = {"n": count}
    for i in range(_MOST_GROUPS - 1):
        scalars[f"size_{i}"] = rows(groups[i][1]) if i < len(groups) - 1 else 1
    return [Dispatch(binary, constants, {"a": a, "b": b, "out": node}, scalars, grid, node.op.name)]


ELEMENTS = Lowering(tuple(UNARY), _unary)
NUMBERS = Lowering(tuple(WITH_NUMBERS), _with_numbers)
PAIRS = Lowering(tuple(BINARY), _binary, refuses=_refuses_binary)
GATES = Lowering(tuple(GLU), _binary)
