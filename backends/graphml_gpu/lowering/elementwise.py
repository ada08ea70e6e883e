"""Elementwise ops, gates among them, some with the conversion of their results to 8 bits."""

from __future__ import annotations

from itertools import groupby

from graphml.ir.node import Node
from graphml.ir.shape import Dim
from graphml_gpu.dispatch import (
    Argument,
    DeviceView,
    Dispatch,
    GpuLowering,
    Scalar,
    along,
    number,
    rows,
    width,
)
from graphml_gpu.kernels.elementwise.converted import binary_int8, unary_int8
from graphml_gpu.kernels.elementwise.formulas import BINARY, GLU, UNARY, WITH_NUMBERS
from graphml_gpu.kernels.elementwise.operations import binary, choose, to_f32, to_i32, unary, with_numbers
from graphml_gpu.lowering.groups import on_grid, per_element

_NUMBERS = {"scale": ("factor", "offset"), "clamp": ("low", "high"), "softcap": ("factor", "limit")}
_MOST_GROUPS = 4
_PER_GROUP = 64


def stretched(a: tuple[Dim, ...], *others: tuple[Dim, ...]) -> list[tuple[tuple[bool, ...], tuple[Dim, ...]]]:
    """Neighbouring dimensions of a that each other has, or is stretched along, as groups: the last first."""
    padded = [(1,) * (len(a) - len(b)) + b for b in others]
    pairs = [
        (tuple(wide == dim for dim in dims), wide)
        for wide, *dims in zip(a, *padded, strict=True)
        if wide != 1
    ]
    groups = [
        (kept, tuple(dim for _, dim in some)) for kept, some in groupby(reversed(pairs), lambda pair: pair[0])
    ]
    return groups or [((True,) * len(others), ())]


def _sizes(groups: list[tuple[tuple[bool, ...], tuple[Dim, ...]]]) -> dict[str, Scalar]:
    return {f"size_{i}": rows(groups[i][1]) if i < len(groups) - 1 else 1 for i in range(_MOST_GROUPS - 1)}


def _unary(node: Node, context: DeviceView) -> list[Dispatch]:
    count, op = rows(node.shape), node.op.name
    return per_element(unary, count, {"FUNCTION": UNARY[op]}, op, x=node.inputs[0], out=node, n=count)


def _with_numbers(node: Node, context: DeviceView) -> list[Dispatch]:
    count, op = rows(node.shape), node.op.name
    first, second = (number(node, name) for name in _NUMBERS[op])
    constants = {"FUNCTION": WITH_NUMBERS[op]}
    return per_element(
        with_numbers, count, constants, op, x=node.inputs[0], out=node, n=count, first=first, second=second
    )


def _refuses_binary(node: Node) -> str | None:
    a, b = node.inputs
    if len(stretched(a.shape, b.shape)) > _MOST_GROUPS:
        return f"{b.name} is stretched in more than {_MOST_GROUPS} groups of dimensions"
    return None


def _binary(node: Node, context: DeviceView) -> list[Dispatch]:
    a, b = node.inputs
    count, op, groups = rows(node.shape), node.op.name, stretched(a.shape, b.shape)
    constants = {"FUNCTION": (BINARY | GLU)[op], "KEPT": tuple(kept for (kept,), _ in groups)}
    return per_element(binary, count, constants, op, a=a, b=b, out=node, n=count, **_sizes(groups))


def _refuses_where(node: Node) -> str | None:
    mask, a, b = node.inputs
    if len(stretched(a.shape, mask.shape, b.shape)) > _MOST_GROUPS:
        return f"{mask.name} and {b.name} are stretched in more than {_MOST_GROUPS} groups of dimensions"
    return None


def _where(node: Node, context: DeviceView) -> list[Dispatch]:
    mask, a, b = node.inputs
    count, op, groups = rows(node.shape), node.op.name, stretched(a.shape, mask.shape, b.shape)
    constants = {"MASK_KEPT": tuple(kept for (kept, _), _ in groups)}
    constants["B_KEPT"] = tuple(kept for (_, kept), _ in groups)
    return per_element(choose, count, constants, op, mask=mask, a=a, b=b, out=node, n=count, **_sizes(groups))


def _cast(node: Node, context: DeviceView) -> list[Dispatch]:
    count = rows(node.shape)
    kernel = to_i32 if node.dtype.name == "i32" else to_f32
    return per_element(kernel, count, {}, node.op.name, x=node.inputs[0], out=node, n=count)


def _refuses_converted(node: Node) -> str | None:
    if node.dtype.name != "q8_1":
        return f"no kernel converts to {node.dtype.name}"
    if len(node.inputs) > 1 and all(source.op.name == "linear" for source in node.inputs):
        return "its products are made together with it, as `mul_mat_glu`"
    return None


def _converted(node: Node, context: DeviceView) -> list[Dispatch]:
    name, quads = node.op.name.removesuffix("_quantize"), width(node) // 4
    count = rows(node.shape[:-1]) * quads
    constants = {"FUNCTION": (UNARY | GLU)[name], "GROUP": _PER_GROUP}
    operands: dict[str, Argument] = dict(zip("ab" if len(node.inputs) > 1 else "x", node.inputs, strict=True))
    kernel, grid = binary_int8 if len(node.inputs) > 1 else unary_int8, along(count, _PER_GROUP)
    return [on_grid(kernel, constants, grid, node.op.name, **operands, out=node, quads=quads, count=count)]


CONVERTED = GpuLowering(
    ("gelu_quantize", "swiglu_quantize", "geglu_quantize"), _converted, refuses=_refuses_converted
)
ELEMENTS = GpuLowering(tuple(UNARY), _unary)
NUMBERS = GpuLowering(tuple(WITH_NUMBERS), _with_numbers)
PAIRS = GpuLowering(tuple(BINARY), _binary, refuses=_refuses_binary)
WHERE = GpuLowering(("where",), _where, refuses=_refuses_where)
CAST = GpuLowering(("cast",), _cast)
GATES = GpuLowering(tuple(GLU), _binary)
