"""Python's statements to the typed tree: assignments and decisions; those on what is known are taken here."""

from __future__ import annotations

import ast
import functools
from typing import Any

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.calls import lower_call
from graphml_gpu.language.conditions import condition
from graphml_gpu.language.context import KernelContext, Value, describe, is_expression, is_number
from graphml_gpu.language.expressions import LANES, array_index, binary, lower_expression
from graphml_gpu.language.loops import count_or_unroll, leave_loop, repeat
from graphml_gpu.language.types import BOOL, ValueType
from graphml_gpu.language.walk import is_stable


def lower_block(context: KernelContext, statements: list[ast.stmt]) -> None:
    """Append the meaning of some statements to the block in hand."""
    for node in statements:
        context.frame.node = node
        _statement(context, node)
        if "return" in context.frame.names or (context.block and isinstance(context.block[-1], nodes.Leave)):
            return


def _statement(context: KernelContext, node: ast.stmt) -> None:
    match node:
        case ast.Assign():
            _assign_all(context, node)
        case ast.AnnAssign() if node.value is not None:
            _annotated(context, node)
        case ast.AugAssign():
            _augmented(context, node)
        case ast.Expr(value=ast.Call() as call):
            lower_call(context, call)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            pass
        case ast.If():
            _if(context, node)
        case ast.For() if not node.orelse:
            count_or_unroll(context, node)
        case ast.While() if not node.orelse:
            repeat(context, node)
        case ast.Break() | ast.Continue():
            leave_loop(context, node)
        case ast.Return():
            _return(context, node)
        case ast.Assert():
            _assert(context, node)
        case _:
            context.fail(f"a kernel has no such statement: `{ast.unparse(node).splitlines()[0]}`", node)


def _named(context: KernelContext, target: ast.expr, value: ast.expr) -> Value:
    """A value to be given to a target: arrays are named after it."""
    if isinstance(target, ast.Name):
        context.frame.names["array's name"] = target.id
    result = lower_expression(context, value)
    context.frame.names.pop("array's name", None)
    return result


def _assign_all(context: KernelContext, node: ast.Assign) -> None:
    value = _named(context, node.targets[0], node.value)
    if len(node.targets) > 1 and is_expression(value):
        value = context.plain("value", value)
    for target in node.targets:
        _assign(context, target, value, node)


def _assign(context: KernelContext, target: ast.expr, value: Value, node: ast.AST) -> None:
    match target:
        case ast.Name():
            give(context, target.id, value, None, node)
        case ast.Tuple() | ast.List():
            _unpack(context, target.elts, value, node)
        case ast.Subscript():
            _store(context, target, value, node)
        case ast.Attribute():
            _set_lane(context, target, value, node)
        case _:
            context.fail(f"`{ast.unparse(target)}` cannot be assigned", node)


def _unpack(context: KernelContext, targets: list[ast.expr], value: Value, node: ast.AST) -> None:
    if not isinstance(value, tuple) or len(value) != len(targets):
        context.fail(f"wanted {len(targets)} values, got {describe(value)}", node)
    once = all(isinstance(t, ast.Name) and context.frame.sites[t.id] <= 1 for t in targets)
    if once:  # none of them is read by what the others are given
        for target, item in zip(targets, value, strict=True):
            _assign(context, target, item, node)
        return
    kept = [v if not is_expression(v) or is_stable(v) else context.fixed("value", v) for v in value]
    for target, item in zip(targets, kept, strict=True):
        _assign(context, target, item, node)


def give(context: KernelContext, name: str, value: Value, wanted: ValueType | None, node: ast.AST) -> None:
    """Assign to a name: a constant or array is bound to it, a value at run time goes into a variable."""
    frame = context.frame
    held = frame.names.get(name)
    what = f"`{name}`"
    if isinstance(held, nodes.Name) and held.variable.loop:
        context.fail(f"{what} counts a loop and cannot be assigned", node)
    if frame.sites[name] <= 1:
        if wanted is not None:
            value = context.typed(value, wanted, what, node)
        if isinstance(value, tuple):
            value = tuple(context.plain(name, v) if is_expression(v) else v for v in value)
        known = not is_expression(value) or isinstance(value, nodes.LiteralValue)
        frame.names[name] = value if known else _fixed(context, name, value)
        return
    if not is_expression(value) and not is_number(value):
        if isinstance(held, nodes.Name):
            context.fail(f"{what}: wanted {held.type.name}, got {describe(value)}", node)
        frame.names[name] = value
        return
    if isinstance(held, nodes.Name) and held.variable.mutable:
        context.emit(nodes.Assign(held.variable, context.typed(value, held.type, what, node)))
        return
    typed = context.typed(value, wanted, what, node) if wanted else context.expression(value, what, node)
    variable = nodes.Variable(context.unique(name), typed.type, mutable=True)
    frame.names[name] = nodes.Name(variable)
    context.emit(nodes.Assign(variable, typed))


def _fixed(context: KernelContext, name: str, value: nodes.Expression) -> nodes.Name:
    """The value as a variable of this name; one that was made for it by the last statement takes the name."""
    last = context.block[-1] if context.block else None
    result = last.variable if isinstance(last, nodes.Assign) else getattr(last, "result", None)
    if isinstance(value, nodes.Name) and value.variable.unnamed and result is value.variable:
        fixed = value
        fixed.variable.name = context.unique(name)
    else:
        fixed = context.fixed(name, value)
    fixed.variable.unnamed = False
    return fixed


def _annotated(context: KernelContext, node: ast.AnnAssign) -> None:
    assert node.value is not None
    wanted = lower_expression(context, node.annotation) if isinstance(node.annotation, ast.Name) else None
    value = _named(context, node.target, node.value)
    if not isinstance(node.target, ast.Name):
        context.fail("only names are annotated", node)
    give(context, node.target.id, value, wanted if isinstance(wanted, ValueType) else None, node)


def _store(context: KernelContext, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    def base() -> Value:
        return lower_expression(context, target.value)

    def index() -> Value:
        return lower_expression(context, target.slice)

    value, array, where = context.in_order([lambda: value, base, index])
    if is_expression(array):
        context.fail("a vector's lanes are assigned by name: v.x = ...", node)
    if not isinstance(array, nodes.ArrayVariable):
        context.fail(f"`{ast.unparse(target)}`: wanted an array, got {describe(array)}", node)
    if array.access == "read":
        context.fail(f"`{array.name}` is Read: it cannot be written; wanted Write or Update", node)
    stored = context.typed(value, array.element, f"element of `{array.name}`", node)
    context.emit(nodes.Store(array, array_index(context, array, where, node), stored))


def _set_lane(context: KernelContext, target: ast.Attribute, value: Value, node: ast.AST) -> None:
    vector = lower_expression(context, target.value)
    if (
        not isinstance(vector, nodes.Name)
        or target.attr not in LANES[: vector.type.lanes]
        or vector.type.lanes == 1
    ):
        context.fail(f"`{ast.unparse(target)}`: wanted a lane of a vector variable", node)
    typed = context.typed(value, vector.type.scalar, f"`{ast.unparse(target)}`", node)
    context.emit(nodes.SetLane(vector.variable, LANES.index(target.attr), typed))


def _augmented(context: KernelContext, node: ast.AugAssign) -> None:
    """`x += y`; an element's index is worked out once."""
    if not isinstance(node.target, ast.Subscript):
        _assign(context, node.target, lower_expression(context, _worked_out(node)), node)
        return
    subscript = node.target
    array, where, value = context.in_order(
        [
            lambda: lower_expression(context, subscript.value),
            lambda: lower_expression(context, subscript.slice),
            lambda: lower_expression(context, node.value),
        ]
    )
    if not isinstance(array, nodes.ArrayVariable) or array.access != "update":
        context.fail(
            f"`{ast.unparse(subscript)}`: wanted an array that is read and written, got {describe(array)}",
            node,
        )
    index = context.plain("at", array_index(context, array, where, node))
    changed = binary(context, type(node.op), nodes.Load(array, index, array.element), value, node)
    context.emit(
        nodes.Store(array, index, context.typed(changed, array.element, f"element of `{array.name}`", node))
    )


@functools.cache
def _worked_out(node: ast.AugAssign) -> ast.BinOp:
    """`x + y` of `x += y`."""
    loaded = ast.parse(ast.unparse(node.target), mode="eval").body
    return ast.copy_location(ast.BinOp(ast.copy_location(loaded, node.target), node.op, node.value), node)


def _if(context: KernelContext, node: ast.If) -> None:
    decided = condition(context, node.test)
    if isinstance(decided, bool):
        lower_block(context, node.body if decided else node.orelse)
        return
    context.frame.inside += 1
    with context.inner() as yes:
        lower_block(context, node.body)
    with context.inner() as no:
        lower_block(context, node.orelse)
    context.frame.inside -= 1
    if not yes and no:
        yes, no, decided = no, [], nodes.Unary("not", decided, BOOL)
    if yes:
        context.emit(nodes.If(decided, yes, no))


def _return(context: KernelContext, node: ast.Return) -> None:
    frame = context.frame
    if len(context.frames) == 1:
        if node.value is not None:
            context.fail("a kernel returns nothing", node)
        context.emit(nodes.Leave("return"))
        return
    if frame.inside or "return" in frame.names:
        context.fail("a @function returns once, at its end", node)
    frame.names["return"] = None if node.value is None else lower_expression(context, node.value)


def _assert(context: KernelContext, node: ast.Assert) -> None:
    """Asserted when compiling: what constants must be."""
    holds: Any = lower_expression(context, node.test)
    if is_expression(holds):
        context.fail("assert: wanted a condition known when compiling", node)
    if not holds:
        message = lower_expression(context, node.msg) if node.msg is not None else ast.unparse(node.test)
        context.fail(f"{message}", node)
