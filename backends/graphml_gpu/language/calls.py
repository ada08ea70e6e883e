"""Calls in a kernel: the language's functions, types as conversions, `@function`s written into their callers.

A Python function of constants alone is called when compiling.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from graphml_gpu.language.context import KernelContext, Value, at_run_time, describe, is_expression, is_number
from graphml_gpu.language.functions import Function
from graphml_gpu.language.inline import inline
from graphml_gpu.language.intrinsics import INTRINSICS, Intrinsic
from graphml_gpu.language.names import Builtin
from graphml_gpu.language.special import SPECIAL
from graphml_gpu.language.tree import Call, Convert, Expression
from graphml_gpu.language.types import BOOL, ValueType


def lower_call(context: KernelContext, node: ast.Call) -> Value:
    """What a call stands for."""
    called = context.lower_expression(context, node.func)
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    values = context.lowered(arguments)
    keywords = {
        str(keyword.arg): value
        for keyword, value in zip(node.keywords, values[len(node.args) :], strict=True)
    }
    values = values[: len(node.args)]
    if isinstance(called, Function):
        return inline(context, called, values, keywords, node)
    if isinstance(called, ValueType):
        return _convert(context, called, values, node)
    name = called.name if isinstance(called, Builtin) else _PYTHON.get(called) if callable(called) else None
    if name is not None and (isinstance(called, Builtin) or any(map(at_run_time, values))):
        return _builtin(context, name, values, keywords, node)
    if not callable(called):
        context.fail(f"`{ast.unparse(node.func)}`: wanted a function, got {describe(called)}", node)
    if any(map(at_run_time, [*values, *keywords.values()])):
        context.fail(
            f"`{ast.unparse(node.func)}` is not a function of the language (decorate it: @function)", node
        )
    try:
        return called(*values, **keywords)
    except Exception as error:
        return context.fail(f"`{ast.unparse(node)}`: {error}", node)


_PYTHON: Mapping[Any, str] = {min: "min", max: "max", abs: "abs", round: "round"}


def _builtin(
    context: KernelContext, name: str, values: list[Value], keywords: Mapping[str, Value], node: ast.Call
) -> Value:
    if keywords:
        context.fail(f"{name}() takes no names of arguments", node)
    if name in INTRINSICS:
        return _intrinsic(context, INTRINSICS[name], values, node)
    if name in SPECIAL:
        n, lower = SPECIAL[name]
        if n is not None and len(values) != n:
            context.fail(f"{name}(): wanted {n} arguments, got {len(values)}", node)
        return lower(context, values, node)
    return context.fail(f"{name}() has no meaning here", node)


def _intrinsic(
    context: KernelContext, intrinsic: Intrinsic, values: list[Value], node: ast.Call
) -> Expression:
    name = f"{intrinsic.name}()"
    if intrinsic.n == 2 and len(values) > 2 and intrinsic.name in ("min", "max"):
        return _intrinsic(
            context, intrinsic, [_intrinsic(context, intrinsic, values[:-1], node), values[-1]], node
        )
    if len(values) != intrinsic.n:
        context.fail(f"{name}: wanted {intrinsic.n} arguments, got {len(values)}", node)
    if intrinsic.kinds == "float":
        values = [float(v) if is_number(v) and not isinstance(v, bool) else v for v in values]
    typed = context.unify(values, name, node)
    kind = typed[0].type
    fits = {"float": kind.is_float, "integer": kind.is_integer, "number": kind != BOOL}[intrinsic.kinds]
    if not fits:
        context.fail(f"{name}: wanted {intrinsic.kinds}s, got {kind.name}", node)
    result = {"": kind, "lane": kind.scalar, "bool": BOOL}[intrinsic.result]
    return Call(intrinsic.name, tuple(typed), result)


def _convert(context: KernelContext, wanted: ValueType, values: list[Value], node: ast.AST) -> Value:
    """`u32(x)`, `f32x4(x)`, `f32x4(a, b, c, d)`."""
    what = f"{wanted.name}()"
    if len(values) == 1 and not is_expression(values[0]):
        value = values[0]
        if not is_number(value):
            context.fail(f"{what}: wanted a number, got {describe(value)}", node)
        return context.literal(_number(wanted, value), wanted, what, node)
    if len(values) not in (1, wanted.lanes):
        context.fail(f"{what}: wanted 1 or {wanted.lanes} values, got {len(values)}", node)
    if len(values) == 1:
        return _converted(context, wanted, values[0], what, node)
    lanes = [
        _converted(context, wanted.scalar, v, what, node)
        if is_expression(v)
        else context.literal(_number(wanted.scalar, v), wanted.scalar, what, node)
        for v in values
    ]
    return Convert(tuple(lanes), wanted)


def _number(wanted: ValueType, value: float) -> float:
    return float(value) if wanted.is_float else value if wanted == BOOL else int(value)


def _converted(
    context: KernelContext, wanted: ValueType, value: Expression, what: str, node: ast.AST
) -> Expression:
    if value.type == wanted:
        return value
    if value.type.lanes not in (1, wanted.lanes):
        context.fail(f"{what}: got {value.type.name}", node)
    if value.type.lanes == wanted.lanes:
        return Convert((value,), wanted)
    return context.spread(_converted(context, wanted.scalar, value, what, node), wanted)
