"""Loops: `range` counts at run time, `unroll` writes the body once for each value, `while` repeats."""

from __future__ import annotations

import ast
import functools

from graphml_gpu.language.conditions import condition
from graphml_gpu.language.context import KernelContext, Value, is_expression, is_number
from graphml_gpu.language.expressions import lower_expression
from graphml_gpu.language.names import Builtin
from graphml_gpu.language.simplify import turns
from graphml_gpu.language.tree import Expression, For, If, Leave, LiteralValue, Name, Unary, Variable, While
from graphml_gpu.language.types import BOOL, U32, ValueType
from graphml_gpu.language.walk import is_stable, never_negative

_UNROLLED = 4096
"""How many copies of a body an unrolled loop may make."""


def count_or_unroll(context: KernelContext, node: ast.For) -> None:
    """`for`: over `range(...)`, `unroll(...)` or a tuple of constants."""
    if not isinstance(node.target, ast.Name) and not isinstance(node.target, ast.Tuple):
        context.fail("a loop counts with one name", node)
    call = node.iter
    called = lower_expression(context, call.func) if isinstance(call, ast.Call) else None
    if called is range and isinstance(call, ast.Call):
        _count(context, node, call)
        return
    values = lower_expression(context, call)
    if not isinstance(values, tuple | list | range):
        context.fail(f"wanted `for ... in range(...)` or unroll(...), got `{ast.unparse(call)}`", node)
    if not isinstance(called, Builtin) and not isinstance(values, tuple):
        context.fail("wanted range(...) or unroll(...)", node)
    _unrolled(context, node, list(values))


def _unrolled(context: KernelContext, node: ast.For, values: list[Value]) -> None:
    frame = context.frame
    if len(values) > _UNROLLED:
        context.fail(f"wanted at most {_UNROLLED} copies of a loop's body, got {len(values)}", node)
    outer, frame.unrolled = frame.unrolled, True
    names = [node.target] if isinstance(node.target, ast.Name) else list(getattr(node.target, "elts", []))
    for value in values:
        items = [value] if isinstance(node.target, ast.Name) else list(value)
        for name, item in zip(names, items, strict=True):
            frame.names[name.id] = item
        context.lower_block(context, node.body)
    frame.unrolled = outer


def _count(context: KernelContext, node: ast.For, call: ast.Call) -> None:
    """`for i in range(begin, end, step)`: bounds are worked out once, before the loop."""
    frame = context.frame
    if not isinstance(node.target, ast.Name) or not 1 <= len(call.args) <= 3:
        context.fail("wanted `for name in range(begin, end, step)`", node)
    arguments = context.lowered(call.args)
    begin, end = (0, arguments[0]) if len(arguments) == 1 else (arguments[0], arguments[1])
    step = arguments[2] if len(arguments) == 3 else 1
    down = is_number(step) and step < 0
    bounds = _bounds(context, [begin, end], step, down, call)
    once = None if _leaves(node) else turns(bounds[0], bounds[1], bounds[2], context.group)
    if once is False:
        return
    never = _never_below_zero(bounds[0], bounds[1], bounds[2], down)
    variable = Variable(context.unique(node.target.id), bounds[0].type, loop=True, never_negative=never)
    hidden = frame.names.get(node.target.id)
    frame.names[node.target.id] = Name(variable) if once is None else bounds[0]
    outer, frame.unrolled = frame.unrolled, False
    frame.inside += 1
    with context.inner() as body:
        context.lower_block(context, node.body)
    frame.inside -= 1
    frame.unrolled = outer
    context.taken.discard(variable.name)  # the next loop may use it again
    if hidden is None:
        del frame.names[node.target.id]
    else:
        frame.names[node.target.id] = hidden
    if once is None:
        context.emit(For(variable, bounds[0], bounds[1], bounds[2], down, body))
    elif once is True:
        context.block.extend(body)
    else:
        context.emit(If(once, body))


@functools.cache
def _leaves(node: ast.For) -> bool:
    """Whether a loop has a `break` or `continue` in it."""
    return any(isinstance(inner, ast.Break | ast.Continue) for inner in ast.walk(node))


def _bounds(
    context: KernelContext, ends: list[Value], step: Value, down: bool, call: ast.Call
) -> list[Expression]:
    what = "range()"
    if step == 0 and is_number(step):
        context.fail(f"{what}: wanted a step, got 0", call)
    if down:
        if not any(is_expression(v) for v in ends):
            ends = [LiteralValue(v, ValueType("i32")) for v in ends]
        *ends, _ = context.unify(
            [*ends, LiteralValue(0, ValueType("i32"))], f"{what} counts down, in i32", call
        )
        typed = [*ends, LiteralValue(step, ValueType("i32"))]
    else:
        typed = context.unify([*ends, step], what, call)
        if not any(is_expression(v) for v in [*ends, step]):
            typed = [context.typed(v, U32, what, call) for v in [*ends, step]] if ends[0] >= 0 else typed
    if typed[0].type.kind not in ("u32", "i32") or typed[0].type.lanes > 1:
        context.fail(f"{what}: wanted integers, got {typed[0].type.name}", call)
    return [value if is_stable(value) else context.fixed("end", value) for value in typed]


def _never_below_zero(begin: Expression, end: Expression, step: Expression, down: bool) -> bool:
    """Whether a loop's variable is 0 or more in all of its turns."""
    if down:
        return isinstance(end, LiteralValue) and end.value >= -1
    return never_negative(begin) and never_negative(step)


def repeat(context: KernelContext, node: ast.While) -> None:
    """`while`; a condition that needs statements is asked at the beginning of the body."""
    frame = context.frame
    with context.inner() as before:
        decided = condition(context, node.test)
    if decided is False:
        return
    outer, frame.unrolled = frame.unrolled, False
    frame.inside += 1
    with context.inner() as body:
        if before and not isinstance(decided, bool):
            context.block.extend(before)
            context.emit(If(Unary("not", decided, BOOL), [Leave("break")]))
        context.lower_block(context, node.body)
    frame.inside -= 1
    frame.unrolled = outer
    context.emit(While(None if before or isinstance(decided, bool) else decided, body))


def leave_loop(context: KernelContext, node: ast.Break | ast.Continue) -> None:
    """`break` and `continue`, of loops at run time."""
    how = "break" if isinstance(node, ast.Break) else "continue"
    if context.frame.unrolled:
        context.fail(f"`{how}` cannot leave an unrolled loop", node)
    context.emit(Leave(how))
