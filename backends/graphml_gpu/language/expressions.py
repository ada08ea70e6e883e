"""Python's expressions to typed ones; what is known when compiling is worked out. Calls are in `calls`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.calls import lower_call
from graphml_gpu.language.conditions import both_or_either, choice, compare, fold
from graphml_gpu.language.context import KernelContext, Value, is_expression
from graphml_gpu.language.division import floored
from graphml_gpu.language.simplify import simplified
from graphml_gpu.language.source import UnknownNameError
from graphml_gpu.language.types import BOOL, U32, ValueType

_BINARY: dict[type[ast.operator], tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", "`+`", operator.add),
    ast.Sub: ("-", "`-`", operator.sub),
    ast.Mult: ("*", "`*`", operator.mul),
    ast.Div: ("/", "`/`", operator.truediv),
    ast.FloorDiv: ("//", "`//`", operator.floordiv),
    ast.Mod: ("%", "`%`", operator.mod),
    ast.Pow: ("**", "`**`", operator.pow),
    ast.LShift: ("<<", "`<<`", operator.lshift),
    ast.RShift: (">>", "`>>`", operator.rshift),
    ast.BitAnd: ("&", "`&`", operator.and_),
    ast.BitOr: ("|", "`|`", operator.or_),
    ast.BitXor: ("^", "`^`", operator.xor),
}
_INTEGER_ONLY = frozenset(["//", "%", "<<", ">>", "&", "|", "^"])
LANES = "xyzw"


def lower_expression(context: KernelContext, node: ast.expr) -> Value:
    """What an expression stands for."""
    lower = _KINDS.get(type(node))
    if lower is None:
        context.fail(f"a kernel has no {type(node).__name__}: `{ast.unparse(node)}`", node)
    return lower(context, node)


def _constant(context: KernelContext, node: ast.Constant) -> Value:
    return node.value


def _tuple(context: KernelContext, node: ast.Tuple | ast.List) -> Value:
    return tuple(context.lowered(node.elts))


def _string(context: KernelContext, node: ast.JoinedStr) -> str:
    return "".join(_part(context, part) for part in node.values)


def _part(context: KernelContext, node: ast.expr) -> str:
    value = lower_expression(context, node.value if isinstance(node, ast.FormattedValue) else node)
    return str(value)


def _name(context: KernelContext, node: ast.Name) -> Value:
    frame = context.frames[-1]
    if node.id in frame.names:
        return frame.names[node.id]
    if node.id in frame.sites:
        context.fail(f"`{node.id}` has no value here (a loop's variable ends with its loop)", node)
    try:
        return frame.source.names(node.id)
    except (UnknownNameError, ValueError):
        return context.fail(f"`{node.id}` is not known", node)


def _binary(context: KernelContext, node: ast.BinOp) -> Value:
    left, right = context.lowered((node.left, node.right))
    return binary(context, type(node.op), left, right, node)


def binary(
    context: KernelContext, kind: type[ast.operator], left: Value, right: Value, node: ast.AST
) -> Value:
    """`left operator right`, folded where both are known."""
    if kind not in _BINARY:
        context.fail(f"a kernel has no operator {kind.__name__}", node)
    sign, what, worked_out = _BINARY[kind]
    if not is_expression(left) and not is_expression(right):
        return fold(context, worked_out, (left, right), what, node)
    if sign == "**":
        context.fail("`**`: wanted constants; pow(x, y) works at run time", node)
    a, b = (
        _shift(context, left, right, what, node)
        if sign in ("<<", ">>")
        else context.unify([left, right], what, node, spread=sign in "&|^")
    )
    if sign in ("//", "%") and isinstance(b, nodes.LiteralValue) and b.value == 0:
        context.fail(f"{what}: wanted a divisor other than 0", node)
    kept = simplified(sign, a, b)
    if kept is not None:
        return kept
    if a.type == BOOL:
        context.fail(f"{what}: wanted numbers, got bool; use `and`, `or`, `not`", node)
    if sign in _INTEGER_ONLY and not a.type.is_integer:
        context.fail(f"{what}: wanted integers, got {a.type.name}", node)
    if sign == "/" and a.type.is_integer:
        context.fail(f"`/`: wanted floats, got {a.type.name}; use `//`", node)
    if sign in ("//", "%") and a.type.kind == "i32":
        return floored(context, sign, a, b)
    return nodes.Binary(sign, a, b, a.type if a.type.lanes >= b.type.lanes else b.type)


def _shift(
    context: KernelContext, left: Value, right: Value, what: str, node: ast.AST
) -> tuple[nodes.Expression, nodes.Expression]:
    """What is shifted, and by how much: u32, as WGSL wants it."""
    left = context.expression(left, what, node)
    by = ValueType("u32", left.type.lanes)
    if not is_expression(right):
        return left, context.typed(right, by, what, node)
    if not right.type.is_integer:
        context.fail(f"{what}: wanted integers, got {right.type.name}", node)
    right = right if right.type.kind == "u32" else nodes.Convert((right,), ValueType("u32", right.type.lanes))
    return left, context.spread(right, by)


def _unary(context: KernelContext, node: ast.UnaryOp) -> Value:
    value = lower_expression(context, node.operand)
    if not is_expression(value):
        folds: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.USub: operator.neg,
            ast.UAdd: operator.pos,
            ast.Invert: operator.invert,
            ast.Not: operator.not_,
        }
        return fold(context, folds[type(node.op)], (value,), "an operator", node)
    kind = value.type
    match node.op:
        case ast.Not():
            return nodes.Unary("not", context.typed(value, BOOL, "`not`", node), BOOL)
        case ast.USub() if kind.is_float or kind.kind == "i32":
            return nodes.Unary("-", value, kind)
        case ast.Invert() if kind.is_integer:
            return nodes.Unary("~", value, kind)
    return context.fail(f"`{ast.unparse(node)}`: no such operator for {kind.name}", node)


def _element(context: KernelContext, node: ast.Subscript) -> Value:
    base, index = context.lowered((node.value, node.slice))
    if isinstance(base, nodes.ArrayVariable):
        if base.space == "buffer" and base.access == "write":
            context.fail(f"`{base.name}` is Write: it cannot be read; wanted Update", node)
        return nodes.Load(base, array_index(context, base, index, node), base.element)
    if is_expression(base):
        lane = context.constant(index, int, "a vector's lane", node)
        return _lane(context, base, lane, node)
    if is_expression(index) or isinstance(index, nodes.ArrayVariable):
        context.fail(
            f"`{ast.unparse(node)}`: wanted an index known when compiling; table(u32, ...) takes others", node
        )
    return fold(context, operator.getitem, (base, index), "an index", node)


def array_index(
    context: KernelContext, array: nodes.ArrayVariable, index: Value, node: ast.AST
) -> nodes.Expression:
    """An index into an array: u32 or i32, within bounds where both are known."""
    what = f"index of `{array.name}`"
    if is_expression(index):
        if index.type.kind not in ("u32", "i32") or index.type.lanes > 1:
            context.fail(f"{what}: wanted u32, got {index.type.name}", node)
        return index  # type: ignore[no-any-return]
    if array.length is not None and isinstance(index, int) and not 0 <= index < array.length:
        context.fail(f"{what}: wanted 0 to {array.length - 1}, got {index}", node)
    return context.typed(index, U32, what, node)


def _lane(context: KernelContext, value: nodes.Expression, lane: int, node: ast.AST) -> nodes.Lane:
    if not 0 <= lane < value.type.lanes or value.type.lanes == 1:
        context.fail(f"{value.type.name} has no lane {lane}", node)
    return nodes.Lane(value, lane)


def _attribute(context: KernelContext, node: ast.Attribute) -> Value:
    base = lower_expression(context, node.value)
    if is_expression(base):
        if node.attr not in LANES:
            context.fail(f"wanted a lane (x, y, z, w), got `.{node.attr}`", node)
        return _lane(context, base, LANES.index(node.attr), node)
    if isinstance(base, nodes.ArrayVariable):
        context.fail(f"an array has no `.{node.attr}`", node)
    return fold(context, getattr, (base, node.attr), "`.`", node)


_KINDS: Mapping[type[ast.expr], Callable[[KernelContext, Any], Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: compare,
    ast.BoolOp: both_or_either,
    ast.IfExp: choice,
    ast.Call: lower_call,
    ast.Subscript: _element,
    ast.Attribute: _attribute,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.JoinedStr: _string,
}
