"""Typed functions -> LLVM IR: numba's lowering, with variables and loops as a C compiler writes them.

For a loop over `range` numba writes some 130 lines: an iterator with counters on the stack, a division for
the number of rounds, an exception. Here it is a slot, a comparison and an addition, which is a quarter less
text for numba to write and LLVM to read. Knows numba and LLVM IR; nothing of kernels.
"""

from __future__ import annotations

import contextlib
from typing import Any

import llvmlite.ir as ir
from numba.core import ir as numba_ir
from numba.core import lowering, types
from numba.core.errors import ConstantInferenceError, LoweringError


def _is_range(kind: Any) -> bool:
    return isinstance(kind, types.Function) and kind.typing_key is range


class KernelLower(lowering.Lower):  # type: ignore[misc]  # numba is untyped
    """Numba's lowering for variables that nothing counts references to and no debugger asks for."""

    def storevar(self, value: ir.Value, name: str, argidx: int | None = None) -> None:
        """Store a value that nothing counts references to."""
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name: str, lltype: ir.Type, datamodel: Any = None) -> ir.Value:
        """A variable's memory, which holds nothing yet: a variable is assigned before it is read."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(lltype, name=name)

    def lower_expr(self, resty: Any, expr: Any) -> ir.Value:
        """As numba, but for loops over `range` of 64 bits whose step is known and positive."""
        if resty is types.range_state64_type and expr.op == "call" and _is_range(self.typeof(expr.func.name)):
            return self._range(resty, expr)
        if expr.op == "getiter" and self._step(expr) is not None:
            return self._begin(resty, self.loadvar(expr.value.name))
        if expr.op == "iternext":
            steps = {self._step(one) for one in self._sources(expr.value.name, "getiter")}
            if len(steps) != 1:
                raise LoweringError(f"one loop over iterators of several kinds: steps {steps}", loc=self.loc)
            (step,) = steps
            if step is not None:
                return self._next(resty, self.loadvar(expr.value.name), step)
        return super().lower_expr(resty, expr)

    def _range(self, resty: Any, expr: Any) -> ir.Value:
        """The struct of start, stop and step."""
        given = [
            self.context.cast(self.builder, self.loadvar(one.name), self.typeof(one.name), types.int64)
            for one in expr.args
        ]
        one, zero = ir.IntType(64)(1), ir.IntType(64)(0)
        parts = [zero, *given, one] if len(given) == 1 else [*given, one][:3]
        return self._struct(resty, parts)

    def _begin(self, resty: Any, state: ir.Value) -> ir.Value:
        """The iterator: where the next number is, and the end."""
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(ir.IntType(64))
        self.builder.store(self.builder.extract_value(state, 0), slot)
        return self._struct(resty, [slot, self.builder.extract_value(state, 1)])

    def _next(self, resty: Any, iterator: ir.Value, step: int) -> ir.Value:
        """The pair of the next number and whether there is one."""
        slot, stop = (self.builder.extract_value(iterator, part) for part in (0, 1))
        here = self.builder.load(slot)
        is_one = self.builder.icmp_signed("<", here, stop)
        self.builder.store(self.builder.add(here, here.type(step), flags=["nsw"]), slot)
        return self._struct(resty, [here, is_one])

    def _struct(self, kind: Any, parts: list[ir.Value]) -> ir.Value:
        value = ir.Constant(self.context.get_value_type(kind), ir.Undefined)
        for index, part in enumerate(parts):
            value = self.builder.insert_value(value, part, index)
        return value

    def _sources(self, name: str, op: str) -> list[Any]:
        """The expressions of `op` that a variable may hold the value of; None for another source."""
        names, found = [name], list[Any]()
        for one in names:
            for made in self.func_ir._definitions.get(one, ()):
                if isinstance(made, numba_ir.Var):
                    names += [made.name] if made.name not in names else []
                else:
                    found.append(made if isinstance(made, numba_ir.Expr) and made.op == op else None)
        return found

    def _step(self, getiter: Any) -> int | None:
        """The step of the loop that begins with an iterator; None where the loop is for numba."""
        if getiter is None or self.typeof(getiter.value.name) is not types.range_state64_type:
            return None
        calls = self._sources(getiter.value.name, "call")
        if len(calls) != 1 or calls[0] is None or not _is_range(self.typeof(calls[0].func.name)):
            return None
        if len(calls[0].args) < 3:
            return 1
        with contextlib.suppress(ConstantInferenceError):
            step = self.func_ir.infer_constant(calls[0].args[2].name)
            return step if type(step) is int and step > 0 else None
        return None
