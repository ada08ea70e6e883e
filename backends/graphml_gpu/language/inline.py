"""`@function`s written into the kernels that call them. Knows no targets."""

from __future__ import annotations

import ast

from graphml_gpu.language.context import Frame, KernelContext, Value, describe, is_expression
from graphml_gpu.language.functions import Function
from graphml_gpu.language.source import Parameter
from graphml_gpu.language.tree import ArrayVariable, Assign, LiteralValue, Name, Variable
from graphml_gpu.language.types import ArrayType, BufferType, ValueType

_DEPTH = 32
"""How deep functions may be written into each other: more is a recursion."""


def inline(
    context: KernelContext,
    function: Function,
    values: list[Value],
    keywords: dict[str, Value],
    node: ast.Call,
) -> Value:
    """Write a function's body here; its value is what it returns."""
    if len(context.frames) >= _DEPTH:
        context.fail(f"{function.name}() calls itself, or functions lie deeper than {_DEPTH}", node)
    source = function.source
    frame = Frame(source, function.sites)
    passed = _arguments(context, function, values, keywords, node)
    for parameter in source.parameters:
        take = _known if parameter.name in function.constants else _argument
        what = f"argument `{parameter.name}` of {function.name}()"
        frame.names[parameter.name] = take(context, function, parameter, passed[parameter.name], what, node)
    context.frames.append(frame)
    context.lower_block(context, source.body)
    result = frame.names.pop("return", None)
    if isinstance(source.returns, ValueType):
        result = context.typed(result, source.returns, f"what {function.name}() returns", frame.node)
    context.frames.pop()
    return result


def _arguments(
    context: KernelContext,
    function: Function,
    values: list[Value],
    keywords: dict[str, Value],
    node: ast.Call,
) -> dict[str, Value]:
    parameters, positional = function.source.parameters, function.positional
    if len(values) > len(positional):
        context.fail(f"{function.name}(): wanted {len(positional)} arguments, got {len(values)}", node)
    passed = dict(zip(positional, values, strict=False))
    for name, value in keywords.items():
        if name in passed or name not in {p.name for p in parameters}:
            context.fail(f"{function.name}() has no argument `{name}` left", node)
        passed[name] = value
    for parameter in parameters:
        if parameter.name not in passed:
            if not parameter.has_default:
                context.fail(f"{function.name}(): wanted its argument `{parameter.name}`", node)
            passed[parameter.name] = parameter.default
    return passed


def _known(
    context: KernelContext, function: Function, parameter: Parameter, value: Value, what: str, node: ast.AST
) -> Value:
    if isinstance(value, LiteralValue):
        return value.value
    if is_expression(value):
        context.fail(f"{what}: wanted a value known when compiling, got {describe(value)}", node)
    return value


def _argument(
    context: KernelContext, function: Function, parameter: Parameter, value: Value, what: str, node: ast.AST
) -> Value:
    """What a parameter stands for: an array or constant itself; a value at run time in a variable, or itself.

    Itself where it is plain, or where the function is one expression in which it stands once.
    """
    name, annotation = parameter.name, parameter.annotation
    if isinstance(annotation, BufferType | ArrayType):
        return _array(context, annotation, value, what, node)
    if isinstance(annotation, ValueType):
        value = context.typed(value, annotation, what, node)
    if not is_expression(value) or name in function.stand_once:
        return value
    if isinstance(value, Name) and function.sites[name] <= 1:
        return value  # a function cannot assign to its caller's variables
    if function.sites[name] > 1:
        variable = Variable(context.unique(name), value.type, mutable=True)
        context.emit(Assign(variable, value))
        return Name(variable)
    return context.plain(name, value)


def _array(
    context: KernelContext, annotation: BufferType | ArrayType, value: Value, what: str, node: ast.AST
) -> ArrayVariable:
    wanted = annotation.element if isinstance(annotation.element, ValueType) else None
    if not isinstance(value, ArrayVariable) or (wanted is not None and value.element != wanted):
        kind = "" if wanted is None else f" of {wanted.name}"
        got = describe(value) + (f" of {value.element.name}" if isinstance(value, ArrayVariable) else "")
        context.fail(f"{what}: wanted an array{kind}, got {got}", node)
    return value
