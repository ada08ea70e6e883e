"""What the names of a kernel's arguments mean for a node of an op of one's own."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.ir.node import Node
from graphml.ir.op import Attribute, Type
from graphml.ir.own_op import OwnOp
from graphml.ir.shape import Shape
from graphml_gpu.dispatch import Argument, NodeResult, Scalar, rows
from graphml_gpu.language import ValueType as Element

RESULT = "out"
_KINDS: Mapping[object, tuple[str, ...]] = {int: ("i32", "u32"), float: ("f32",), bool: ("u32",)}
"""Type of an attribute -> the types of scalars that it may be."""
_LEAST = {"i32": -(1 << 31), "u32": 0}
_MOST = {"i32": (1 << 31) - 1, "u32": (1 << 32) - 1}
WIDTH = "N"
"""The constant that is the last dimension of the first result."""


def result_names(kind: Type) -> tuple[str, ...]:
    """What the results of a type are called: `out`, or `out_0`, `out_1`, ..."""
    return tuple(f"{RESULT}_{i}" for i in range(len(kind.parts))) or (RESULT,)


def value_types(op: OwnOp, inputs: tuple[Type, ...], kind: Type) -> Mapping[str, Type]:
    """The types of all operands and results, by name."""
    results = zip(result_names(kind), kind.parts or (kind,), strict=True)
    return {**dict(zip(op.declared.operands, inputs, strict=True)), **dict(results)}


def types_of(op: OwnOp, node: Node) -> Mapping[str, Type]:
    """The types of a node's operands and results."""
    return value_types(op, tuple(source.type for source in node.inputs), node.type)


def arguments_of(op: OwnOp, node: Node) -> Mapping[str, Argument]:
    """A node's operands and results, by name."""
    results: list[Argument] = [NodeResult(node, i) for i in range(len(node.type.parts))] or [node]
    operands = zip(op.declared.operands, node.inputs, strict=True)
    return {**dict(operands), **dict(zip(result_names(node.type), results, strict=True))}


def size_names(op: OwnOp) -> list[str]:
    """The scalars that are sizes."""
    return [
        "rows",
        "n",
        "count",
        *(f"{operand}_{what}" for operand in op.declared.operands for what in ("rows", "n")),
    ]


def scalar_kinds(op: OwnOp, name: str) -> tuple[str, ...] | None:
    """The types that a scalar may have; (): none, it is no number; None: there is no such scalar."""
    if name in op.declared.kinds:
        return _KINDS.get(op.declared.kinds[name], ())
    return ("u32",) if name in size_names(op) else None


def scalar_of(op: OwnOp, node: Node, name: str) -> Scalar:
    """The value of a scalar for a node."""
    if name in op.declared.kinds:
        value = op.fitted(node.attributes)[name]
        assert isinstance(value, int | float)
        return value
    shape = first_result(node.type).shape
    if name == "count":
        return rows(shape)
    operand, _, what = name.rpartition("_")
    if operand:
        shape = node.inputs[op.declared.operands.index(operand)].shape
    return rows(_last(shape)) if what == "n" else rows(shape[:-1])


def constant_of(op: OwnOp, node: Node, name: str) -> Attribute:
    """The value of a compile-time constant for a node: an attribute, or the width of a row."""
    if name in op.declared.kinds:
        return op.fitted(node.attributes)[name]
    return rows(_last(first_result(node.type).shape)).bound


def unfit_number(op: OwnOp, node: Node, name: str, kind: str) -> str | None:
    """Why the value of an attribute is no scalar of a kind; None where it is one."""
    value = node.attributes[name]
    if kind == "f32" or (isinstance(value, int) and _LEAST[kind] <= value <= _MOST[kind]):
        return None
    return f"its attribute {name} = {value!r} is no {kind}"


def unfit_element(element: Element, kind: Type) -> str | None:
    """Why a buffer's elements are not those of a value: what is wanted; None where they are."""
    name = kind.dtype.name
    wanted = {"f32": ("f32",), "i32": ("i32",), "f16": ("u32", "f16")}.get(name, ("u32",))
    return None if element.kind in wanted else f"{' or '.join(wanted)} for values of {name}"


def first_result(kind: Type) -> Type:
    """The type of a result, of several the first."""
    return (kind.parts or (kind,))[0]


def _last(shape: Shape) -> Shape:
    return shape[-1:]
