"""Statements of a kernel's function -> LLVM blocks in static single assignment, as they are emitted.

A name means the value that was assigned last. Where control flow joins, and where a loop begins, names that
differ become phis (`values.merged`); nothing is kept on the stack. Knows syntax trees; nothing of functions
that are called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.calls import Calls
from graphml_cpu.frontend.expressions import RetypedError
from graphml_cpu.frontend.trees import assigned_in
from graphml_cpu.frontend.values import (
    NOTHING,
    Counted,
    Items,
    Known,
    Lost,
    Typed,
    UncompilableError,
    Unusable,
    Value,
    ValueAhead,
    converted,
    llvm_types,
    merged,
    rebuilt,
    structure,
    unified,
)

Variables = dict[str, Value]
End = tuple[ir.Block, Variables]
_COMPOUND: dict[type, str] = {
    ast.If: "_if", ast.For: "_for", ast.While: "_while", ast.Return: "_return", ast.Break: "_jump",
    ast.Continue: "_jump",
}  # fmt: skip
DROPPED = object()  # a hint: what a loop's variable was before is not read in the loop


class Statements(Calls):
    """Emits statements at the builder's place. `returned`: where the function ends, and with what."""

    def __init__(self, look_up: Callable[[str], Any], locals_: frozenset[str]) -> None:
        super().__init__(look_up, locals_)
        self.returned: list[tuple[ir.Block, Value]] = []
        self._loops: list[tuple[list[End], list[End]]] = []  # where `break` and `continue` left each

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Emit statements; whether what follows them is reached."""
        return all(self._statement(node) for node in body)

    def _statement(self, node: ast.stmt) -> bool:
        self.line = node.lineno
        compound = _COMPOUND.get(type(node))
        if compound is not None:
            return bool(getattr(self, compound)(node))
        if isinstance(node, ast.Assign):
            value = self.evaluate(node.value)
            for target in node.targets:
                self._assign(target, value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self.evaluate(node.value))
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, self.evaluate(ast.BinOp(_read(node.target), node.op, node.value)))
        elif isinstance(node, ast.Expr):
            self.evaluate(node.value)
        elif not isinstance(node, ast.Pass):
            raise UncompilableError(f"kernels cannot have: {ast.unparse(node).splitlines()[0]}")
        return True

    def _return(self, node: ast.Return) -> bool:
        value = NOTHING if node.value is None else self.evaluate(node.value)
        self.returned.append((self.builder.block, value))
        return False

    def _jump(self, node: ast.Break | ast.Continue) -> bool:
        ends = self._loops[-1][isinstance(node, ast.Continue)]
        ends.append((self.builder.block, dict(self.variables)))
        return False

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
        elif isinstance(target, ast.Tuple):
            if not isinstance(value, Items) or len(value.values) != len(target.elts):
                raise UncompilableError(f"it cannot be taken apart into {ast.unparse(target)}")
            for element, item in zip(target.elts, value.values, strict=True):
                self._assign(element, item)
        else:
            raise UncompilableError(f"kernels cannot assign to {ast.unparse(target)}")

    def _if(self, node: ast.If) -> bool:
        blocks, before = (self.block(), self.block()), self.variables
        decided = self.branch(node.test, *blocks)
        ends: list[End] = []
        for block, body, way in ((blocks[0], node.body, True), (blocks[1], node.orelse, False)):
            if decided is not None and decided is not way:
                self.drop(block)
                continue
            self.builder.position_at_end(block)
            self.variables = dict(before)
            if self.run(body):
                ends.append((self.builder.block, self.variables))
        return self._go_on(ends)

    def _go_on(self, ends: Sequence[End]) -> bool:
        """Continue where several blocks end; whether one does."""
        if not ends:
            return False
        if len(ends) == 1:
            block, self.variables = ends[0]
            self.builder.position_at_end(block)
            return True
        block = self.block()
        names = dict.fromkeys(name for _, variables in ends for name in variables)
        variables = {}
        for name in names:
            sources = [(source, variables.get(name)) for source, variables in ends]
            variables[name] = merged(self.builder, name, sources, block)
        for source, _ in ends:
            self.builder.position_at_end(source)
            self.builder.branch(block)
        self.builder.position_at_end(block)
        self.variables = variables
        return True

    def _while(self, node: ast.While) -> bool:
        if node.orelse:
            raise UncompilableError("loops have no else")
        loop = _Loop(self, node)
        body, done = self.block(), self.block()
        decided = self.branch(node.test, body, done)
        at_end = dict(self.variables)
        self.builder.position_at_end(body)
        breaks = self._body(node, loop)
        if decided is True:
            self.drop(done)
            return self._leave(node, loop, at_end, breaks)
        return self._leave(node, loop, at_end, [(done, at_end), *breaks])

    def _for(self, node: ast.For) -> bool:
        if node.orelse:
            raise UncompilableError("loops have no else")
        counted = self.evaluate(node.iter)
        if not isinstance(counted, Counted):
            raise UncompilableError(f"loops are over ranges, not {ast.unparse(node.iter)}")
        start, stop, step = (
            self.argument(bound, types.int64) for bound in (counted.start, counted.stop, counted.step)
        )
        rises = counted.step.object > 0 if isinstance(counted.step, Known) else None
        if isinstance(counted.step, Known) and counted.step.object == 0:
            raise UncompilableError("the step of a range is 0")
        if rises is None:
            falls = self.builder.icmp_signed("<", step, step.type(0))
        before = self.builder.block
        loop = _Loop(self, node)
        index = self.builder.phi(types.int64.llvm_type)
        index.add_incoming(start, before)
        body, done = self.block(), self.block()
        is_one = self.builder.icmp_signed(">" if rises is False else "<", index, stop)
        if rises is None:
            is_one = self.builder.select(falls, self.builder.icmp_signed(">", index, stop), is_one)
        self.builder.cbranch(is_one, body, done)
        at_end = dict(self.variables)
        self.builder.position_at_end(body)
        self._assign(node.target, Typed(types.int64, index))

        def count() -> None:
            following = self.builder.add(index, step, flags=("nsw",))
            index.add_incoming(following, self.builder.block)

        breaks = self._body(node, loop, count)
        return self._leave(node, loop, at_end, [(done, at_end), *breaks])

    def _body(
        self, node: ast.For | ast.While, loop: _Loop, count: Callable[[], None] | None = None
    ) -> list[End]:
        """The body of a loop, and the way back to its beginning; where `break` left it."""
        breaks: list[End] = []
        goes_on: list[End] = []
        self._loops.append((breaks, goes_on))
        if self.run(node.body):
            goes_on.append((self.builder.block, self.variables))
        self._loops.pop()
        if self._go_on(goes_on):
            loop.lost = dict(self.variables)
            if count is not None:
                count()
            loop.close()
        return breaks

    def _leave(self, node: ast.For | ast.While, loop: _Loop, at_end: Variables, ends: list[End]) -> bool:
        """Behind a loop: what only its body assigned is lost, unless it is asked for."""
        for name in assigned_in(node):
            before, value = at_end.get(name), loop.lost.get(name)
            own = (id(node), name)
            if before is None or isinstance(before, ValueAhead):
                if value is None or isinstance(value, ValueAhead):
                    if before == ValueAhead(own):
                        del at_end[name]
                    continue
                try:
                    at_end[name] = (
                        value
                        if isinstance(value, Lost)
                        else Lost(before.key if before else own, structure(value))
                    )
                except UncompilableError as why:
                    at_end[name] = Unusable(str(why))
        return self._go_on(ends)


class _Loop:
    """The beginning of a loop: a phi for each variable that it assigns and that has a value before it."""

    def __init__(self, emitter: Statements, node: ast.For | ast.While) -> None:
        self._emitter, self._node = emitter, node
        self._phis: dict[str, tuple[Any, list[Any]]] = {}
        self.lost: Variables = {}
        builder, variables = emitter.builder, dict(emitter.variables)
        before, self._block = builder.block, emitter.block()
        carried = {}
        for name in sorted(assigned_in(node)):
            hint = emitter.hints.get((id(node), name))
            value = variables.get(name)
            if isinstance(value, (ValueAhead, Lost)) and hint is None:
                continue
            if hint is DROPPED or (hint is None and (value is None or isinstance(value, Unusable))):
                variables[name] = ValueAhead((id(node), name))
                continue
            if value is None or isinstance(value, (Lost, Unusable)):
                carried[name] = hint, [ir.Constant(llvm_type, ir.Undefined) for llvm_type in llvm_types(hint)]
                continue
            if isinstance(value, Counted):
                variables[name] = Unusable(f"{name}, a range that a loop assigns")
                continue
            kind = structure(value) if hint is None else hint
            carried[name] = kind, converted(builder, value, kind)
        builder.branch(self._block)
        builder.position_at_end(self._block)
        for name, (kind, values) in carried.items():
            phis = [builder.phi(initial.type) for initial in values]
            for phi, initial in zip(phis, values, strict=True):
                phi.add_incoming(initial, before)
            self._phis[name] = kind, phis
            variables[name] = rebuilt(kind, iter(phis))
        emitter.variables = variables

    def close(self) -> None:
        """From the end of the body back to the beginning. Raises `RetypedError` for another type."""
        emitter, builder = self._emitter, self._emitter.builder
        for name, (kind, phis) in self._phis.items():
            value = emitter.variables[name]
            key = id(self._node), name
            try:
                now = structure(value)
            except UncompilableError:
                now = None
            both = unified(kind, now)
            if both is None or both != kind:
                emitter.hints[key] = DROPPED if both is None else both
                raise RetypedError
            for phi, incoming in zip(phis, converted(builder, value, kind), strict=True):
                phi.add_incoming(incoming, builder.block)
        builder.branch(self._block)


def _read(target: ast.expr) -> ast.expr:
    if not isinstance(target, ast.Name):
        raise UncompilableError(f"kernels cannot assign to {ast.unparse(target)}")
    return ast.Name(target.id, ast.Load())
