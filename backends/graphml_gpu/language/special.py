"""The functions of the language that are more than a call: places, arrays, atomics, what spans a subgroup."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from struct import pack, unpack
from typing import Any

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.context import KernelContext, Value, at_run_time, describe, is_expression
from graphml_gpu.language.types import BOOL, F32, I32, U32, ValueType


def _position(which: str) -> Callable[[KernelContext, list[Value], ast.Call], nodes.Expression]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.Expression:
        dimension = context.constant(values[0], int, f"{which}()", node)
        if dimension not in (0, 1, 2):
            context.fail(f"{which}(): wanted 0, 1 or 2, got {dimension}", node)
        return nodes.Index(which, dimension, U32)

    return lower


def _plain_position(which: str) -> Callable[[KernelContext, list[Value], ast.Call], Value]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> Value:
        if which.startswith("subgroup") and not context.features.subgroups:
            alone = {"subgroup_count": _group_size(context), "subgroup_lane": 0}
            if which in alone:
                return nodes.LiteralValue(alone[which], U32)
            return nodes.Index("local_index", None, U32)
        return nodes.Index(which, None, U32)

    return lower


def _select(context: KernelContext, values: list[Value], node: ast.Call) -> Value:
    decided = values[0]
    if not is_expression(decided):
        return values[1] if decided else values[2]
    yes, no = context.unify(values[1:], "select()", node)
    return nodes.Select(context.typed(decided, BOOL, "condition of select()", node), yes, no)


def _bitcast(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.Expression:
    wanted, value = values
    if not isinstance(wanted, ValueType):
        context.fail(f"bitcast(): wanted a type first, got {describe(wanted)}", node)
    value = context.expression(value, "bitcast()", node)
    if value.type.n_bytes != wanted.n_bytes or BOOL in (value.type, wanted):
        context.fail(f"bitcast(): {value.type.name} and {wanted.name} differ in size", node)
    if isinstance(value, nodes.LiteralValue) and value.type == U32 and wanted == F32:
        # WGSL refuses constants that are no numbers: a literal is made where its renderer needs.
        return nodes.LiteralValue(unpack("<f", pack("<I", value.value))[0], F32)
    return value if value.type == wanted else nodes.Call("bitcast", (value,), wanted)


def _typed_call(
    name: str, takes: tuple[ValueType, ...], gives: ValueType
) -> Callable[[KernelContext, list[Value], ast.Call], nodes.Expression]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.Expression:
        typed = [context.typed(v, t, f"{name}()", node) for v, t in zip(values, takes, strict=True)]
        return nodes.Call(name, tuple(typed), gives)

    return lower


def _new_array(space: str) -> Callable[[KernelContext, list[Value], ast.Call], nodes.ArrayVariable]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.ArrayVariable:
        element, length = values
        if not isinstance(element, ValueType):
            context.fail(f"{space}_array(): wanted a type first, got {describe(element)}", node)
        length = context.constant(length, int, f"length of {space}_array()", node)
        if not 0 < length <= 65536:
            context.fail(f"{space}_array(): wanted 1 to 65536 elements, got {length}", node)
        frame = context.frame
        hint = frame.names.get("array's name", space)
        once = len(context.arrays) if space == "private" else 0
        key = (frame.source.file, frame.source.where(node), node.col_offset, element, length, once)
        if key not in context.arrays:
            context.arrays[key] = nodes.ArrayVariable(context.unique(hint), space, element, length)
        return context.arrays[key]

    return lower


def _table(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.ArrayVariable:
    element, numbers = values
    if not isinstance(element, ValueType) or element.lanes > 1 or at_run_time(numbers):
        context.fail("table(): wanted a scalar type and constants", node)
    literals = tuple(context.literal(v, element, "table()", node).value for v in numbers)
    key = ("table", element, literals)
    if key not in context.arrays:
        name = context.unique(context.frame.names.get("array's name", "table"))
        context.arrays[key] = nodes.ArrayVariable(
            name, "table", element, len(literals), "read", values=literals
        )
    return context.arrays[key]


def _barrier(context: KernelContext, values: list[Value], node: ast.Call) -> None:
    context.emit(nodes.Barrier(context.frame.source.where(node)))


def _uniform(context: KernelContext, values: list[Value], node: ast.Call) -> Value:
    """The value as a variable, of which compilers know that all invocations have the same."""
    if not is_expression(values[0]) or _group_size(context) == 1:
        return values[0]
    kind = values[0].type
    if kind == BOOL:
        context.fail("uniform(): wanted a number, got bool", node)
    if kind not in context.uniform:
        context.uniform[kind] = context.unique(f"uniform_{kind.name}")
    result = nodes.Variable(context.unique("uniform_value"), kind, unnamed=True)
    where = context.frame.source.where(node)
    context.emit(nodes.Uniform(values[0], context.uniform[kind], result, where))
    return nodes.Name(result)


def _atomic(operator: str) -> Callable[[KernelContext, list[Value], ast.Call], nodes.Expression]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> nodes.Expression:
        array, index, value = values
        name = f"atomic_{operator}()"
        if (
            not isinstance(array, nodes.ArrayVariable)
            or array.space == "private"
            or array.element not in (U32, I32)
        ):
            context.fail(
                f"{name}: wanted a buffer or shared array of u32 or i32, got {describe(array)}", node
            )
        if array.access != "update":
            context.fail(f"{name}: `{array.name}` must be Update", node)
        array.atomic = True
        old = nodes.Variable(context.unique("old"), array.element, unnamed=True)
        position = context.typed(index, U32, name, node)
        context.emit(
            nodes.Atomic(operator, array, position, context.typed(value, array.element, name, node), old)
        )
        return nodes.Name(old)

    return lower


def _across(operator: str) -> Callable[[KernelContext, list[Value], ast.Call], Value]:
    def lower(context: KernelContext, values: list[Value], node: ast.Call) -> Value:
        name = f"subgroup_{operator}()"
        value = context.expression(values[0], name, node)
        if operator == "broadcast":  # WGSL wants a lane that is known when compiling
            context.constant(values[1], int, f"lane of {name}", node)
        by = context.typed(values[1], U32, name, node) if len(values) > 1 else None
        if not context.features.subgroups:
            return value
        result = nodes.Variable(context.unique(f"subgroup_{operator}"), value.type, unnamed=True)
        context.emit(nodes.Across(operator, value, by, result))
        return nodes.Name(result)

    return lower


def _fact(fact: Callable[[KernelContext], Any]) -> Callable[[KernelContext, list[Value], ast.Call], Any]:
    return lambda context, values, node: fact(context)


def _group_size(context: KernelContext) -> int:
    x, y, z = context.group
    return x * y * z


def _type_of(context: KernelContext, values: list[Value], node: ast.Call) -> ValueType:
    return context.expression(values[0], "type_of()", node).type


def _print(context: KernelContext, values: list[Value], node: ast.Call) -> None:
    shown = (v if isinstance(v, str) else context.expression(v, "debug_print()", node) for v in values)
    context.emit(nodes.Print(tuple(shown)))


def _unroll(context: KernelContext, values: list[Value], node: ast.Call) -> tuple[Any, ...]:
    if len(values) == 1 and isinstance(values[0], tuple | list | range):
        return tuple(values[0])
    return tuple(range(*(context.constant(v, int, "unroll()", node) for v in values)))


SPECIAL: Mapping[str, tuple[int | None, Callable[[KernelContext, list[Value], ast.Call], Value]]] = {
    **{name: (1, _position(name)) for name in ("group_id", "local_id", "global_id", "num_groups")},
    **{
        name: (0, _plain_position(name))
        for name in ("local_index", "subgroup_count", "subgroup_lane", "subgroup_id")
    },
    **{f"subgroup_{name}": (1, _across(name)) for name in ("sum", "max")},
    **{f"subgroup_{name}": (2, _across(name)) for name in ("xor", "broadcast")},
    **{f"atomic_{name}": (3, _atomic(name)) for name in ("add", "max", "min", "or")},
    "group_size": (0, _fact(_group_size)),
    "subgroup_size_min": (0, _fact(lambda c: c.features.subgroup_min if c.features.subgroups else 1)),
    "subgroup_size_max": (0, _fact(lambda c: c.features.subgroup_max if c.features.subgroups else 1)),
    "has_subgroups": (0, _fact(lambda c: c.features.subgroups)),
    "has_f16": (0, _fact(lambda c: c.features.f16)),
    "has_dot4": (0, _fact(lambda c: c.features.dot4)),
    "select": (3, _select),
    "bitcast": (2, _bitcast),
    "unpack_half2": (1, _typed_call("unpack_half2", (U32,), ValueType("f32", 2))),
    "pack_half2": (1, _typed_call("pack_half2", (ValueType("f32", 2),), U32)),
    "dot4_i8": (3, _typed_call("dot4_i8", (U32, U32, I32), I32)),
    "shared_array": (2, _new_array("shared")),
    "private_array": (2, _new_array("private")),
    "table": (2, _table),
    "barrier": (0, _barrier),
    "uniform": (1, _uniform),
    "type_of": (1, _type_of),
    "debug_print": (None, _print),
    "unroll": (None, _unroll),
}
