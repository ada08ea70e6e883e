"""A kernel's tree as Python, for the emulator: one call an invocation, a generator where invocations meet.

At a barrier or an operation across a subgroup an invocation yields what it waits for. Values are NumPy
scalars of the types they have on a device, so that integers wrap and floats round as they do there. Literals
and conversions of scalars are made once, at the top of the text, as making a NumPy scalar takes longer than
adding two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.intrinsics import CONVERSIONS, INTRINSICS
from graphml_gpu.language.types import ValueType

_COMPARED = {"<": "below", "<=": "most", ">": "above", ">=": "least", "==": "equal", "!=": "unlike"}
_INTEGER = {"//": "divide", "%": "remainder", "<<": "shift_left", ">>": "shift_right"}
_OF_SCALARS = ("min", "max", "clamp", "inverse_sqrt", "fma", "bitcast")
"""Functions with a quicker form for scalars."""


def python(tree: nodes.Tree, title: str) -> str:
    """The text of a function of the runtime `rt`, `rt_place`, the arrays and the scalars.

    The text needs a runtime `rt` of the same types as it is executed, too.
    """
    arrays = [array.name for array in (*tree.buffers, *tree.arrays, *tree.tables)]
    arguments = ["rt", "rt_place", *arrays, *(name for name, _ in tree.scalars)]
    writer = _Writer()
    body = list(writer.lines(tree.body, 1)) or ["    pass"]
    constants = (f"{name} = {value}" for name, value in writer.made.items())
    return "\n".join([f"# {title}", *constants, f"def {tree.name}({', '.join(arguments)}):", *body, ""])


class _Writer:
    """made: names of what is made once -> how."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def lines(self, block: list[nodes.Statement], depth: int) -> Iterator[str]:
        margin = "    " * depth
        for statement in block:
            for line in self._statement(statement, depth):
                yield line if line.startswith(" ") else margin + line

    def _block(self, block: list[nodes.Statement], depth: int) -> Iterator[str]:
        yield from self.lines(block, depth)
        if all(isinstance(statement, nodes.Print) and not statement.values for statement in block):
            yield "    " * depth + "pass"

    def _statement(self, statement: nodes.Statement, depth: int) -> Iterator[str]:
        text = self._text
        match statement:
            case nodes.Assign():
                yield f"{statement.variable.name} = {text(statement.value)}"
            case nodes.Declare():
                yield f"{statement.variable.name} = {self._literal(0, statement.variable.type)}"
            case nodes.SetLane():
                name = statement.variable.name
                yield f"{name} = rt.with_lane({name}, {statement.lane}, {text(statement.value)})"
            case nodes.Store():
                yield f"{statement.array.name}[{text(statement.index)}] = {text(statement.value)}"
            case nodes.Atomic():
                values = f"{statement.operator!r}, {text(statement.index)}, {text(statement.value)}"
                changed = f"{statement.array.name}.atomic({values})"
                yield f"{statement.result.name} = {changed}" if statement.result else changed
            case nodes.Across():
                value, by = text(statement.value), text(statement.by) if statement.by else None
                yield f"{statement.result.name} = yield ({statement.operator!r}, {value}, {by})"
            case nodes.Barrier():
                yield f"yield ('barrier', {statement.where!r}, None)"
            case nodes.Uniform():
                value = text(statement.value)
                yield f"{statement.result.name} = yield ('uniform', {statement.where!r}, {value})"
            case nodes.If() | nodes.For() | nodes.While():
                yield from self._nested(statement, depth)
            case nodes.Leave():
                yield statement.how
            case nodes.Print():
                shown = ", ".join(repr(v) if isinstance(v, str) else text(v) for v in statement.values)
                yield f"rt.show(rt_place, {shown})"

    def _nested(self, statement: nodes.If | nodes.For | nodes.While, depth: int) -> Iterator[str]:
        match statement:
            case nodes.If():
                yield f"if {self._text(statement.condition)}:"
                yield from self._block(statement.yes, depth + 1)
                if statement.no:
                    yield "    " * depth + "else:"
                    yield from self._block(statement.no, depth + 1)
            case nodes.For():
                bounds = ", ".join(self._text(v) for v in (statement.begin, statement.end, statement.step))
                yield f"for {statement.variable.name} in rt.count({bounds}):"
                yield from self._block(statement.body, depth + 1)
            case nodes.While():
                condition = "True" if statement.condition is None else self._text(statement.condition)
                yield f"while {condition}:"
                yield from self._block(statement.body, depth + 1)

    def _text(self, value: nodes.Expression) -> str:
        match value:
            case nodes.LiteralValue():
                return self._literal(value.value, value.type)
            case nodes.Name():
                return value.variable.name
            case nodes.Scalar():
                return value.name
            case nodes.Index():
                dimension = "" if value.dimension is None else f"[{value.dimension}]"
                return f"rt_place.{value.which}{dimension}"
            case nodes.Load():
                return f"{value.array.name}[{self._text(value.index)}]"
            case nodes.Lane():
                return f"{self._text(value.value)}[{value.lane}]"
            case nodes.Unary():
                return f"({value.operator} {self._text(value.value)})"
            case nodes.Binary():
                return self._binary(value)
            case nodes.Select():
                condition, yes, no = map(self._text, (value.condition, value.yes, value.no))
                return f"({yes} if {condition} else {no})"
            case nodes.Convert():
                return self._convert(value)
            case nodes.Call():
                return self._call(value)

    def _binary(self, value: nodes.Binary) -> str:
        left = self._text(value.left)
        if value.operator in _INTEGER and value.type.is_integer:
            return self._integer(value, left)
        right = self._text(value.right)
        if value.operator in _COMPARED and value.left.type.is_float:
            return f"rt.{_COMPARED[value.operator]}({left}, {right})"
        return f"({left} {value.operator} {right})"

    def _integer(self, value: nodes.Binary, left: str) -> str:
        """Operators that NumPy has with another meaning at some operands, as it has them where it can."""
        operator, right, kind = value.operator, value.right, value.type
        literal = right.value if isinstance(right, nodes.LiteralValue) else None
        if operator in ("<<", ">>") and literal is not None:
            return f"({left} {operator} {self._literal(int(literal) & 31, kind)})"
        if operator in ("//", "%") and kind.kind == "u32" and literal:
            return f"({left} {operator} {self._text(right)})"
        scalar = kind.lanes == 1 and (kind.kind == "u32" or operator in ("//", "%"))
        return f"rt.{kind.name + '_' if scalar else ''}{_INTEGER[operator]}({left}, {self._text(right)})"

    def _convert(self, value: nodes.Convert) -> str:
        kind, kinds = value.type, [element.type for element in value.values]
        texts = [self._text(element) for element in value.values]
        if kind.lanes == 1 and kinds[0].lanes == 1:
            name = f"rt_{kind.name}_of_{kinds[0].name}"
            self.made[name] = f"rt.conversion(rt.{kinds[0].name}, rt.{kind.name})"
            return f"{name}({texts[0]})"
        if len(texts) > 1 and all(element is kind.scalar for element in kinds):
            return f"rt.vector(rt.{kind.scalar.name}, {', '.join(texts)})"
        return f"rt.convert(rt.{kind.name}, {', '.join(texts)})"

    def _call(self, value: nodes.Call) -> str:
        texts, kind = [self._text(operand) for operand in value.values], f"rt.{value.type.name}"
        form = INTRINSICS[value.name].python if value.name in INTRINSICS else CONVERSIONS[value.name][2]
        scalars = value.type.lanes == 1 and all(operand.type.lanes == 1 for operand in value.values)
        if scalars and value.name in _OF_SCALARS:
            form = form.replace(f"rt.{value.name}(", f"rt.scalar_{value.name}(")
        return form.format(*texts, type=kind)

    def _literal(self, value: float, kind: ValueType) -> str:
        if kind is ValueType("bool"):
            return str(bool(value))
        finite = not isinstance(value, float) or math.isfinite(value)
        text = repr(value) if finite else f"float({str(value)!r})"
        name = f"rt_{kind.name}_{re.sub('[-.+]', _spelled, str(value))}"
        self.made[name] = (
            f"rt.constant(rt.convert(rt.{kind.name}, {text}))"
            if kind.lanes > 1
            else f"rt.{kind.name}({text})"
        )
        return name


def _spelled(sign: re.Match[str]) -> str:
    return {"-": "m", ".": "p", "+": ""}[sign.group()]
