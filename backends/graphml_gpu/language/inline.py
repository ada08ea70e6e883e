"""`@function`s written into the kernels that call them. Knows no targets."""

from __future__ import annotations

import ast
from typing import Any

from graphml_gpu.language.context import Context, Value, describe, is_expression
from graphml_gpu.language.functions import Function, entered
from graphml_gpu.language.tree import Array, Assign, Literal, Name, Variable
from graphml_gpu.language.types import ArrayType, BufferType, Type

_DEPTH = 32
"""How deep functions may be written into each other: more is a recursion."""


def inline(
    context: Context, function: Function, values: list[Value], keywords: dict[str, Value], node: ast.Call
) -> Value:
    """Write a function's body here; its value is what it returns."""
    if len(context.frames) >= _DEPTH:
        context.fail(f"{function.name}() calls itself, or functions lie deeper than {_DEPTH}", node)
    source = function.source
    frame = entered(source, node)
    given = _arguments(context, function, values, keywords, node)
    for parameter in source.parameters:
        value = given[parameter.name]
        constant = parameter.keyword_only or parameter.annotation in (int, bool, str, float)
        what = f"argument `{parameter.name}` of {function.name}()"
        frame.names[parameter.name] = (
            _known(context, value, what, node)
            if constant
            else _argument(
                context,
                frame.sites[parameter.name] > 1,
                parameter.name,
                parameter.annotation,
                value,
                what,
                node,
            )
        )
    context.frames.append(frame)
    context.lower_block(context, source.body)
    result = frame.names.pop("return", None)
    if isinstance(source.returns, Type):
        result = context.typed(result, source.returns, f"what {function.name}() returns", frame.node)
    context.frames.pop()
    return result


def _arguments(
    context: Context, function: Function, values: list[Value], keywords: dict[str, Value], node: ast.Call
) -> dict[str, Value]:
    parameters = function.source.parameters
    positional = [p.name for p in parameters if not p.keyword_only]
    if len(values) > len(positional):
        context.fail(f"{function.name}(): wanted {len(positional)} arguments, got {len(values)}", node)
    given = dict(zip(positional, values, strict=False))
    for name, value in keywords.items():
        if name in given or name not in {p.name for p in parameters}:
            context.fail(f"{function.name}() has no argument `{name}` left", node)
        given[name] = value
    for parameter in parameters:
        if parameter.name not in given:
            if not parameter.has_default:
                context.fail(f"{function.name}(): wanted its argument `{parameter.name}`", node)
            given[parameter.name] = parameter.default
    return given


def _known(context: Context, value: Value, what: str, node: ast.AST) -> Value:
    if isinstance(value, Literal):
        return value.value
    if is_expression(value):
        context.fail(f"{what}: wanted a value known when compiling, got {describe(value)}", node)
    return value


def _argument(
    context: Context, mutable: bool, name: str, annotation: Any, value: Value, what: str, node: ast.AST
) -> Value:
    if isinstance(annotation, BufferType | ArrayType):
        if not isinstance(value, Array) or value.element != annotation.element:
            context.fail(f"{what}: wanted an array of {annotation.element.name}, got {describe(value)}", node)
        return value
    if isinstance(annotation, Type):
        value = context.typed(value, annotation, what, node)
    if not is_expression(value):
        return value
    if mutable:
        variable = Variable(context.unique(name), value.type, mutable=True)
        context.emit(Assign(variable, value))
        return Name(variable)
    return context.plain(name, value)
