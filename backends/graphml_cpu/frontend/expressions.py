"""Expressions of a kernel's function -> LLVM instructions and values; what is known is worked out at once.

Knows syntax trees, values and operators; nothing of calls, statements and loops.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import operators, types
from graphml_cpu.frontend.operation import TupleBuilder
from graphml_cpu.frontend.values import (
    NOTHING,
    Items,
    Known,
    Lost,
    Source,
    Typed,
    UncompilableError,
    Unusable,
    Value,
    ValueAhead,
    as_python,
    described,
    known,
    merged,
    number,
)

_BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}  # fmt: skip
FUNCTIONS = frozenset(_BINARY.values())


class RetypedError(Exception):
    """A loop's variable needs another type, or is needed behind the loop; the function is emitted anew."""


class Expressions:
    """Emits expressions at the builder's place."""

    def __init__(self, look_up: Callable[[str], Any], locals_: frozenset[str]) -> None:
        self.look_up, self.locals = look_up, locals_
        self.variables: dict[str, Value] = {}
        self.hints: dict[tuple[int, str], Any] = {}
        self.builder: Any = TupleBuilder()
        self.line = 0

    def block(self) -> ir.Block:
        """A new block of the function."""
        return self.builder.function.append_basic_block()

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression. Raises `UncompilableError` for what kernels cannot have."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UncompilableError(f"kernels cannot have {ast.unparse(node)}")
        value: Value = method(node)
        return value

    def _constant(self, node: ast.Constant) -> Value:
        return known(node.value)

    def _name(self, node: ast.Name) -> Value:
        if node.id not in self.locals:
            try:
                return known(self.look_up(node.id))
            except KeyError:
                raise UncompilableError(f"nothing is called {node.id}") from None
        variable = self.variables.get(node.id)
        if isinstance(variable, Lost):
            self.hints[variable.key] = variable.kind
            raise RetypedError
        if variable is None or isinstance(variable, (ValueAhead, Unusable)):
            raise UncompilableError(
                variable.why if isinstance(variable, Unusable) else f"{node.id} is read before it is assigned"
            )
        return variable

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.evaluate(node.value)
        if not isinstance(owner, Known) or not hasattr(owner.object, node.attr):
            raise UncompilableError(f"{described(owner)} has no {node.attr}")
        return known(getattr(owner.object, node.attr))

    def _tuple(self, node: ast.Tuple) -> Value:
        return Items(self.arguments(node.elts))

    def _subscript(self, node: ast.Subscript) -> Value:
        owner, index = self.evaluate(node.value), self.evaluate(node.slice)
        if isinstance(owner, Items) and isinstance(index, Known) and isinstance(index.object, int):
            if not -len(owner.values) <= index.object < len(owner.values):
                raise UncompilableError(f"a tuple of {len(owner.values)} has no item {index.object}")
            element: Value = owner.values[index.object]
            return element
        if isinstance(owner, Items) and isinstance(index, Typed) and index.kind is types.int64:
            return self._item(owner, index)
        raise UncompilableError(f"only tuples have items: {ast.unparse(node)}")

    def _item(self, owner: Items, index: Typed) -> Value:
        """The item of a number that is not known yet, of a tuple whose items have one type."""
        items = [number(element) for element in owner.values]
        if any(element.kind is not items[0].kind for element in items):
            raise UncompilableError("only tuples of one type have items of numbers that are not known")
        if not items:
            raise UncompilableError("an empty tuple has no items")
        below = self.builder.icmp_signed("<", index.value, index.value.type(0))
        from_end = self.builder.add(index.value, index.value.type(len(items)))
        index = Typed(index.kind, self.builder.select(below, from_end, index.value))
        chosen = items[0].value
        for place, item in enumerate(items[1:], 1):
            is_it = self.builder.icmp_signed("==", index.value, index.value.type(place))
            chosen = self.builder.select(is_it, item.value, chosen)
        return Typed(items[0].kind, chosen)

    def _slice(self, node: ast.Slice) -> Value:
        raise UncompilableError("kernels have no slices")

    def _binop(self, node: ast.BinOp) -> Value:
        return self.binary(_BINARY[type(node.op)], self.evaluate(node.left), self.evaluate(node.right))

    def binary(self, function: Callable[..., Any], a: Value, b: Value) -> Value:
        """A function of the module `operator` on two values."""
        try:
            folded = function(as_python(a), as_python(b))
        except (LookupError, ArithmeticError, ValueError, TypeError):
            pass
        else:
            if isinstance(folded, int) and not -(2**63) <= folded < 2**64:
                raise UncompilableError(f"{folded} has more than 64 bits")
            return known(folded)
        if function in (operator.is_, operator.is_not):
            if all(
                isinstance(operand, Typed)
                or (isinstance(operand, Known) and isinstance(operand.object, (bool, int, float)))
                for operand in (a, b)
            ):
                raise UncompilableError("`is` tells no numbers apart: write ==")
            return Known(function is operator.is_not)  # what was emitted is no known object
        left, right = number(a), number(b)
        return Typed(
            *operators.binary(self.builder, function, (left.kind, left.value), (right.kind, right.value))
        )

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.evaluate(operand) for operand in (node.left, *node.comparators)]
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        comparisons = [self.binary(_BINARY[type(op)], a, b) for op, a, b in pairs]
        result = comparisons[0]
        for comparison in comparisons[1:]:
            result = self.binary(operator.and_, result, comparison)
        return result

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self._chosen(node, NOTHING, NOTHING)
        operand = self.evaluate(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        negates = isinstance(node.op, ast.USub)
        if isinstance(operand, Known):
            return known(-operand.object if negates else ~operand.object)
        typed = number(operand)
        emit = operators.negative if negates else operators.inverted
        return Typed(*emit(self.builder, (typed.kind, typed.value)))

    def _boolop(self, node: ast.BoolOp) -> Value:
        ends_with = isinstance(node.op, ast.Or)
        sources: list[Source] = []
        for operand in node.values[:-1]:
            value = self.evaluate(operand)
            held = self.truth_of(value)
            if held is ends_with:
                return self.meet([*sources, (self.builder.block, value)], ast.unparse(node))
            if not isinstance(held, bool):
                leaves, following = self.block(), self.block()
                self.builder.cbranch(held, *((leaves, following) if ends_with else (following, leaves)))
                sources.append((leaves, value))
                self.builder.position_at_end(following)
        value = self.evaluate(node.values[-1])
        return self.meet([*sources, (self.builder.block, value)], ast.unparse(node))

    def _chosen(self, node: ast.expr, yes: Value, no: Value) -> Value:
        """A boolean of a condition made of `and`, `or` and `not`."""
        if isinstance(node, ast.UnaryOp):
            value = self.truth(node.operand)
            if isinstance(value, bool):
                return Known(not value)
            return Typed(types.boolean, self.builder.not_(value))
        return self._either(node, lambda: yes, lambda: no)

    def _ifexp(self, node: ast.IfExp) -> Value:
        return self._either(node.test, lambda: self.evaluate(node.body), lambda: self.evaluate(node.orelse))

    def _either(self, test: ast.expr, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        blocks = self.block(), self.block()
        decided = self.branch(test, *blocks)
        sources: list[Source] = []
        for block, emit, way in ((blocks[0], yes, True), (blocks[1], no, False)):
            if decided is None or decided is way:
                self.builder.position_at_end(block)
                value = emit()
                sources.append((self.builder.block, value))
            else:
                self.drop(block)
        return self.meet(sources, ast.unparse(test))

    def meet(self, sources: Sequence[Source], name: str) -> Value:
        """Go on where several blocks end: the value that each has."""
        if len(sources) == 1:
            self.builder.position_at_end(sources[0][0])
            assert sources[0][1] is not None
            return sources[0][1]
        block = self.block()
        value = merged(self.builder, name, sources, block)
        for source, _ in sources:
            self.builder.position_at_end(source)
            self.builder.branch(block)
        self.builder.position_at_end(block)
        return value

    def truth(self, node: ast.expr) -> Any:
        """Whether an expression is true: a Python bool if that is known, else an LLVM value of one bit."""
        return self.truth_of(self.evaluate(node))

    def truth_of(self, value: Value) -> Any:
        """The same of a value."""
        if isinstance(value, (Known, Items)):
            return bool(value.values if isinstance(value, Items) else value.object)
        typed = number(value)
        return operators.cast(self.builder, typed.value, typed.kind, types.boolean)

    def branch(self, node: ast.expr, yes: ir.Block, no: ir.Block) -> bool | None:
        """Go to `yes` or `no`; which one, if that is known: then nothing goes to the other."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            decided = self.branch(node.operand, no, yes)
            return None if decided is None else not decided
        if isinstance(node, ast.BoolOp):
            return self._branch_several(node, yes, no)
        value = self.truth(node)
        if isinstance(value, bool):
            self.builder.branch(yes if value else no)
            return value
        self.builder.cbranch(value, yes, no)
        return None

    def _branch_several(self, node: ast.BoolOp, yes: ir.Block, no: ir.Block) -> bool | None:
        """`and` goes to `no` at the first that is false, `or` to `yes` at the first that is true."""
        ends_with = isinstance(node.op, ast.Or)
        undecided = False
        for operand in node.values[:-1]:
            following = self.block()
            ways = (yes, following) if ends_with else (following, no)
            decided = self.branch(operand, *ways)
            if decided is ends_with:
                self.drop(following)
                return None if undecided else ends_with
            undecided |= decided is None
            self.builder.position_at_end(following)
        decided = self.branch(node.values[-1], yes, no)
        return None if undecided else decided

    def drop(self, block: ir.Block) -> None:
        """Take a block to which nothing goes out of the function."""
        self.builder.function.blocks.remove(block)

    def arguments(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        """The values of expressions; a tuple with a star gives its items."""
        values: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items = self.evaluate(node.value)
                if not isinstance(items, Items):
                    raise UncompilableError(f"{ast.unparse(node)} is no tuple")
                values += items.values
            else:
                values.append(self.evaluate(node))
        return tuple(values)
