"""What is known while a kernel is lowered to its tree: the functions entered, the block being filled, names.

Knows neither Python's syntax (`statements`, `expressions`, `calls`) nor the targets.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from graphml.errors import BackendError
from graphml_gpu.language.features import AskedFeatures
from graphml_gpu.language.source import FunctionSource
from graphml_gpu.language.tree import (
    ArrayVariable,
    Assign,
    Convert,
    Expression,
    LiteralValue,
    Name,
    Statement,
    Variable,
)
from graphml_gpu.language.types import BOOL, F32, I32, U32, ValueType
from graphml_gpu.language.walk import has_load, is_plain, never_negative

Value = Any
"""What a name or an expression of a kernel stands for: an `Expression` (known at run time), an
`ArrayVariable`, a tuple of values, or anything else: a value known when compiling."""

_LARGEST = {"f32": float.fromhex("0x1.fffffep127"), "f16": 65504.0}
_EXPRESSIONS = frozenset(Expression.__args__)


def is_expression(value: Value) -> bool:
    """Whether a value is known at run time only."""
    return type(value) in _EXPRESSIONS


def at_run_time(value: Value) -> bool:
    """Whether a value is an expression or an array."""
    return is_expression(value) or isinstance(value, ArrayVariable)


def is_number(value: Value) -> bool:
    """Whether a value is an int, float or bool known when compiling."""
    return isinstance(value, int | float)


@dataclass
class Frame:
    """A function being lowered. sites: how often each name is assigned in it. names: what they stand for."""

    source: FunctionSource
    sites: Counter[str]
    names: dict[str, Value] = field(default_factory=dict)
    node: ast.AST | None = None
    inside: int = 0
    """Loops and decisions at run time around the statement in hand, within this function."""
    unrolled: bool = False
    """Whether the innermost loop is unrolled."""


@dataclass
class KernelContext:
    """One kernel on its way from Python's syntax to a tree."""

    name: str
    features: AskedFeatures
    group: tuple[int, int, int]
    lower_expression: Callable[[KernelContext, ast.expr], Value]
    lower_block: Callable[[KernelContext, list[ast.stmt]], None]
    frames: list[Frame] = field(default_factory=list)
    block: list[Statement] = field(default_factory=list)
    arrays: dict[Any, ArrayVariable] = field(default_factory=dict)
    """Shared and private arrays and tables, by what makes them one."""
    uniform: dict[ValueType, str] = field(default_factory=dict)
    """Of each type of `uniform` values the name of the variable that WGSL holds them in."""
    taken: set[str] = field(default_factory=set)

    @property
    def frame(self) -> Frame:
        """The function in hand."""
        return self.frames[-1]

    @property
    def where(self) -> str:
        """File and line of the statement in hand."""
        return self.frame.source.where(self.frame.node) if self.frame.node else self.frame.source.file

    def fail(self, message: str, node: ast.AST | None = None) -> NoReturn:
        """Raise `BackendError` naming the kernel, the line, and the lines of the functions entered."""
        places = [frame.source.where(frame.node or frame.source.tree) for frame in self.frames]
        if node is not None and hasattr(node, "lineno"):
            places[-1] = self.frame.source.where(node)
        inner = f" (called from {', '.join(reversed(places[:-1]))})" if len(places) > 1 else ""
        raise BackendError(f"kernel {self.name}, {places[-1]}{inner}: {message}")

    def unique(self, name: str) -> str:
        """A name that no other variable, array or argument of the kernel has."""
        name = "unused" if name == "_" else name  # which is no name in WGSL
        candidate, n = name, 0
        while candidate in self.taken:
            n += 1
            candidate = f"{name}_{n}"
        self.taken.add(candidate)
        return candidate

    def emit(self, statement: Statement) -> None:
        """Append to the block in hand."""
        self.block.append(statement)

    @contextmanager
    def inner(self) -> Iterator[list[Statement]]:
        """Fill a block of its own."""
        outer, self.block = self.block, []
        try:
            yield self.block
        finally:
            self.block = outer

    def fixed(self, hint: str, value: Expression) -> Name:
        """A new variable with this value, given here; unnamed in Python."""
        never = value.type.kind == "i32" and never_negative(value)
        variable = Variable(self.unique(hint), value.type, unnamed=True, never_negative=never)
        self.emit(Assign(variable, value))
        return Name(variable)

    def plain(self, hint: str, value: Expression) -> Expression:
        """The value as one that may be written twice and later."""
        return value if is_plain(value) else self.fixed(hint, value)

    def in_order(self, lowerings: list[Callable[[], Value]]) -> list[Value]:
        """Lower several expressions; what a later one's statements could change is worked out before them."""
        values: list[Value] = []
        for lowering in lowerings:
            start = len(self.block)
            value = lowering()
            if len(self.block) > start:
                self._fix_before(values, start)
            values.append(value)
        return values

    def lowered(self, nodes: Iterable[ast.expr]) -> list[Value]:
        """The same for expressions as they are written, which most are."""
        values: list[Value] = []
        block, lower = self.block, self.lower_expression
        for node in nodes:
            start = len(block)
            value = lower(self, node)
            if values and len(block) > start:
                self._fix_before(values, start)
            values.append(value)
        return values

    def _fix_before(self, values: list[Value], start: int) -> None:
        tail = self.block[start:]
        del self.block[start:]
        for i, earlier in enumerate(values):
            # Statements of expressions assign to variables of their own only: what they can change is memory.
            if is_expression(earlier) and has_load(earlier):
                values[i] = self.fixed("value", earlier)
        self.block.extend(tail)

    def typed(self, value: Value, wanted: ValueType, what: str, node: ast.AST | None = None) -> Expression:
        """The value as an expression of the type wanted; only constants are converted."""
        if is_expression(value):
            if value.type != wanted:
                advice = f"; {wanted.name}(...) converts" if wanted.lanes == 1 else ""
                self.fail(f"{what}: wanted {wanted.name}, got {value.type.name}{advice}", node)
            return value  # type: ignore[no-any-return]
        if not is_number(value):
            self.fail(f"{what}: wanted {wanted.name}, got {describe(value)}", node)
        return self.literal(value, wanted, what, node)

    def literal(
        self, value: float, wanted: ValueType, what: str, node: ast.AST | None = None
    ) -> LiteralValue:
        """A constant in a type that holds it."""
        if wanted == BOOL:
            fits = isinstance(value, bool)
        elif isinstance(value, bool):
            fits = False
        elif wanted.is_integer:
            low, high = (0, 2**32) if wanted.kind == "u32" else (-(2**31), 2**31)
            fits = isinstance(value, int) and low <= value < high
        else:
            value = float(value)
            fits = not isfinite(value) or abs(value) <= _LARGEST[wanted.kind]
        if not fits:
            self.fail(f"{what}: wanted {wanted.name}, got the constant {value}", node)
        return LiteralValue(value, wanted)

    def expression(self, value: Value, what: str, node: ast.AST | None = None) -> Expression:
        """The value as an expression; a constant takes its usual type: u32 (i32 below 0), f32 or bool."""
        if is_expression(value):
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool):
            return LiteralValue(value, BOOL)
        if isinstance(value, int):
            return self.literal(value, U32 if value >= 0 else I32, what, node)
        if isinstance(value, float):
            return LiteralValue(value, F32)
        return self.fail(f"{what}: wanted a number, got {describe(value)}", node)

    def unify(
        self, values: list[Value], what: str, node: ast.AST | None = None, spread: bool = True
    ) -> list[Expression]:
        """Values brought to one type: constants take that of the others, scalars are spread over vectors.

        spread: no: scalars stay, as some operators take both.
        """
        types = {value.type for value in values if type(value) in _EXPRESSIONS}
        if len(types) == 1 and (not spread or next(iter(types)).lanes == 1):
            (widest,) = types
            alone = widest if spread else widest.scalar
            return [v if type(v) in _EXPRESSIONS else self.typed(v, alone, what, node) for v in values]
        if not types:
            floats = any(isinstance(value, float) for value in values)
            first = self.expression(float(values[0]) if floats else values[0], what, node)
            return [self.typed(value, first.type, what, node) for value in values]
        widest = max(types, key=lambda t: t.lanes)
        if any(t.kind != widest.kind or t.lanes not in (1, widest.lanes) for t in types):
            names = " and ".join(sorted(t.name for t in types))
            self.fail(f"{what}: wanted values of one type, got {names}", node)
        alone = widest if spread else widest.scalar
        typed = [v if is_expression(v) else self.typed(v, alone, what, node) for v in values]
        return [self.spread(value, widest) for value in typed] if spread else typed

    def spread(self, value: Expression, wanted: ValueType) -> Expression:
        """A scalar as a vector with it in all lanes."""
        if value.type.lanes == wanted.lanes:
            return value
        return Convert((value,), wanted)

    def constant(self, value: Value, kinds: Mapping[type, str] | type, what: str, node: ast.AST) -> Any:
        """A value that must be known when compiling."""
        kind = kinds if isinstance(kinds, type) else tuple(kinds)
        if is_expression(value) or not isinstance(value, kind):
            wanted = kinds.__name__ if isinstance(kinds, type) else " or ".join(kinds.values())
            self.fail(f"{what}: wanted {wanted} known when compiling, got {describe(value)}", node)
        return value


def describe(value: Value) -> str:
    """A value in a message."""
    if is_expression(value):
        return f"{value.type.name} known at run time"
    if isinstance(value, ArrayVariable):
        return f"the {value.space} array {value.name!r}"
    if isinstance(value, ValueType):
        return f"the type {value.name}"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    name = getattr(value, "name", None)
    return f"{name}" if isinstance(name, str) else repr(value)
