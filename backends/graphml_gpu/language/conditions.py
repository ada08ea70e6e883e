"""Comparisons, `and`, `or`, `a if c else b`, decided when compiling where their values are known."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.context import KernelContext, Value, describe, is_expression, is_number
from graphml_gpu.language.types import BOOL
from graphml_gpu.language.walk import has_load, truth

_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("is", operator.is_),
    ast.IsNot: ("is not", operator.is_not),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}


def fold(
    context: KernelContext, worked_out: Callable[..., Any], values: tuple[Any, ...], what: str, node: ast.AST
) -> Any:
    """Work out what is known; arrays are not, and Python's errors become the kernel's."""
    for value in values:
        if type(value) is nodes.ArrayVariable:
            got = f"{describe(values[0])} and {describe(values[-1])}"
            context.fail(f"{what}: wanted numbers, got {got}", node)
    try:
        return worked_out(*values)
    except (TypeError, ValueError, ArithmeticError) as error:
        return context.fail(f"{what} of {', '.join(map(describe, values))}: {error}", node)


def compare(context: KernelContext, node: ast.Compare) -> Value:
    """A comparison, or a chain of them."""
    sides = [node.left, *node.comparators]
    values = context.lowered(sides)
    if len(values) > 2:
        values = [context.plain("value", v) if is_expression(v) else v for v in values]
    result: Value = True
    for i, kind in enumerate(node.ops):
        result = _both(context, result, _compared(context, kind, values[i], values[i + 1], node))
    return result


def _compared(context: KernelContext, kind: ast.cmpop, left: Value, right: Value, node: ast.AST) -> Value:
    sign, worked_out = _COMPARE[type(kind)]
    if not is_expression(left) and not is_expression(right):
        return fold(context, worked_out, (left, right), f"`{sign}`", node)
    if sign in ("is", "is not") and (left is None or right is None):
        return sign == "is not"
    if "i" in sign:
        context.fail(f"`{sign}`: wanted values known when compiling", node)
    a, b = context.unify([left, right], f"`{sign}`", node)
    if a.type.lanes > 1:
        context.fail(f"`{sign}`: wanted scalars, got {a.type.name}", node)
    if isinstance(a, nodes.LiteralValue) and isinstance(b, nodes.LiteralValue):
        return worked_out(a.value, b.value)
    return nodes.Binary(sign, a, b, BOOL)


def _both(context: KernelContext, left: Value, right: Value) -> Value:
    if not is_expression(left):
        return right if left else False
    if not is_expression(right):
        return left if right else False
    return nodes.Binary("and", left, right, BOOL)


def both_or_either(context: KernelContext, node: ast.BoolOp) -> Value:
    """`and`, `or`: constants decide; what the right side needs first runs only where it is asked for."""
    stops = isinstance(node.op, ast.Or)
    sign = "or" if stops else "and"
    result: Value = not stops
    for side in node.values:
        if not is_expression(result) and bool(result) == stops:
            return result
        with context.inner() as needed:
            value = context.lower_expression(context, side)
        if not is_expression(result):
            context.block.extend(needed)
            result = value
            continue
        right = truth(bool(value)) if is_number(value) else context.typed(value, BOOL, f"`{sign}`", side)
        left = context.typed(result, BOOL, f"`{sign}`", node)
        if needed:
            result = _asked_for(context, left, right, needed, stops)
        elif isinstance(right, nodes.LiteralValue):
            result = right if bool(right.value) == stops else left
        else:
            result = nodes.Binary(sign, left, right, BOOL)
    return result


def _asked_for(
    context: KernelContext, left: nodes.Expression, right: nodes.Expression, needed: list[Any], stops: bool
) -> nodes.Name:
    variable = nodes.Variable(context.unique("holds"), BOOL, mutable=True)
    context.emit(nodes.Assign(variable, left))
    ask: nodes.Expression = nodes.Unary("not", nodes.Name(variable), BOOL) if stops else nodes.Name(variable)
    context.emit(nodes.If(ask, [*needed, nodes.Assign(variable, right)]))
    return nodes.Name(variable)


def condition(context: KernelContext, node: ast.expr) -> Value:
    """A bool known when compiling, or an expression of type bool."""
    value = context.lower_expression(context, node)
    if is_expression(value):
        if value.type != BOOL:
            context.fail(f"condition `{ast.unparse(node)}`: wanted bool, got {value.type.name}", node)
        return value
    if isinstance(value, nodes.ArrayVariable):
        context.fail(f"condition `{ast.unparse(node)}`: wanted bool, got {describe(value)}", node)
    return bool(value)


def choice(context: KernelContext, node: ast.IfExp) -> Value:
    """`a if c else b`: a select where both sides are harmless, else an `if`."""
    decided = condition(context, node.test)
    if isinstance(decided, bool):
        return context.lower_expression(context, node.body if decided else node.orelse)
    with context.inner() as first:
        yes = context.lower_expression(context, node.body)
    with context.inner() as second:
        no = context.lower_expression(context, node.orelse)
    a, b = context.unify([yes, no], "both sides of `if ... else`", node)
    if not first and not second and not has_load(a) and not has_load(b):
        return nodes.Select(decided, a, b)
    variable = nodes.Variable(context.unique("value"), a.type, mutable=True)
    context.emit(nodes.If(decided, [*first, nodes.Assign(variable, a)], [*second, nodes.Assign(variable, b)]))
    return nodes.Name(variable)
