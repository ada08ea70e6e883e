"""Functions of kernels -> LLVM functions, once for each list of argument types, and a kernel's whole text.

Knows what a function calls, and LLVM's text; the statements are emitted by `statements`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

from graphml.errors import BackendError
from graphml_cpu.frontend.expressions import RetypedError
from graphml_cpu.frontend.operation import InlineFunction
from graphml_cpu.frontend.statements import Statements
from graphml_cpu.frontend.trees import assigned_in, surroundings, tree_of
from graphml_cpu.frontend.values import (
    NOTHING,
    Items,
    UncompilableError,
    Value,
    converted,
    flat,
    known,
    llvm_types,
    rebuilt,
    structure,
)

Helpers = dict[tuple[InlineFunction, tuple[Any, ...]], "Emitted"]


class Emitted:
    """A function for one list of argument types. result: the structure of what it returns.

    helpers: what this kernel's helpers became; None: each helper keeps that for all kernels.
    """

    _count = 0

    def __init__(self, function: Callable[..., Any], kinds: Sequence[Any], helpers: Helpers | None) -> None:
        Emitted._count += 1
        self.name = f"{function.__name__}.{Emitted._count}"
        self.helpers = helpers
        self.calls: dict[str, Emitted] = {}
        hints: dict[tuple[int, str], Any] = {}
        while True:
            try:
                self._emit(function, kinds, hints)
            except RetypedError:
                continue
            return

    def _emit(
        self, function: Callable[..., Any], kinds: Sequence[Any], hints: dict[tuple[int, str], Any]
    ) -> None:
        tree = tree_of(function)
        parameters = [parameter.arg for parameter in tree.args.args]
        if tree.args.posonlyargs or tree.args.kwonlyargs or tree.args.kwarg:
            raise BackendError(
                f"{function.__code__.co_filename}:{tree.lineno}: only plain parameters and *rest"
            )
        rest = [tree.args.vararg.arg] if tree.args.vararg else []
        emitter = _Emitter(self, surroundings(function), assigned_in(tree) | {*parameters, *rest})
        emitter.hints, emitter.line = hints, tree.lineno
        module = ir.Module()
        at = llvm_types(tuple(kinds))
        llvm_function = ir.Function(module, ir.FunctionType(ir.VoidType(), at), self.name)
        emitter.builder.position_at_end(llvm_function.append_basic_block())
        values = rebuilt(tuple(kinds), iter(llvm_function.args))
        assert isinstance(values, Items)
        arguments = [
            *values.values[: len(parameters)],
            *([Items(values.values[len(parameters) :])] if rest else []),
        ]
        emitter.variables = dict(zip((*parameters, *rest), arguments, strict=True))
        try:
            if emitter.run(tree.body):
                emitter.returned.append((emitter.builder.block, NOTHING))
            value = emitter.meet(emitter.returned, "the result")
            self.result = structure(value)
            self._finish(emitter, value, llvm_function)
        except (BackendError, RetypedError):
            raise
        except Exception as error:  # whatever it is: whoever wrote the kernel needs to know the line
            where = f"{function.__code__.co_filename}:{emitter.line}"
            raise BackendError(f"{where}, in {function.__name__}: {error}") from error
        self._keep(module, llvm_function)

    def _finish(self, emitter: _Emitter, value: Value, llvm_function: ir.Function) -> None:
        """Return the value: nothing, one LLVM value, or several in a struct."""
        values = converted(emitter.builder, value, self.result)
        if not values:
            emitter.builder.ret_void()
            return
        result = returned_type(self.result)
        llvm_function.ftype.return_type = llvm_function.return_value.type = result
        if len(values) == 1:
            emitter.builder.ret(values[0])
            return
        struct = ir.Constant(result, ir.Undefined)
        for index, field in enumerate(values):
            struct = emitter.builder.insert_value(struct, field, index)
        emitter.builder.ret(struct)

    def _keep(self, module: ir.Module, llvm_function: ir.Function) -> None:
        llvm_function.attributes.add("alwaysinline")
        self.text = str(llvm_function)
        called = {helper.name for helper in self.calls.values()}
        self.needs = {
            symbol.name: str(symbol)
            for symbol in module.global_values
            if symbol is not llvm_function and symbol.name not in called
        }


class _Emitter(Statements):
    """Emits one function's statements, and calls of others."""

    def _helper(self, function: InlineFunction, kinds: tuple[Any, ...]) -> Emitted:
        helpers = self._emitted.helpers
        known: Emitted | None = (
            function.emitted.get(kinds) if helpers is None else helpers.get((function, kinds))
        )
        if known is not None:
            return known
        helper = Emitted(function.function, kinds, helpers)
        if helpers is None:
            function.emitted[kinds] = helper
        else:
            helpers[function, kinds] = helper
        return helper

    def __init__(self, emitted: Emitted, look_up: Callable[[str], Any], locals_: frozenset[str]) -> None:
        super().__init__(look_up, locals_)
        self._emitted = emitted

    def call_function(
        self, function: InlineFunction, arguments: Sequence[Value], named: dict[str, Value]
    ) -> Value:
        """Call an `inline` function, which LLVM puts in place of the call."""
        bound = _bound(function, arguments, named)
        kinds = tuple(structure(value) for value in bound)
        called = self._helper(function, kinds)
        self._emitted.calls[called.name] = called
        values = [value.value for value in flat(Items(tuple(bound)))]
        module, result = self.builder.module, returned_type(called.result)
        target = module.globals.get(called.name)
        if target is None:
            target = ir.Function(
                module, ir.FunctionType(result, [value.type for value in values]), called.name
            )
        call = self.builder.call(target, values)
        parts = llvm_types(called.result)
        if len(parts) < 2:
            return rebuilt(called.result, iter([call]))
        taken = (self.builder.extract_value(call, index) for index in range(len(parts)))
        return rebuilt(called.result, taken)


def _bound(called: InlineFunction, arguments: Sequence[Value], named: dict[str, Value]) -> list[Value]:
    """All arguments in the order of the parameters. `UncompilableError` if some are missing or too many."""
    code, defaults = called.function.__code__, called.function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    usual = dict(zip(names[len(names) - len(defaults) :], map(known, defaults), strict=True))
    by_position = dict(zip(names, arguments, strict=False))
    bound, rest = {**usual, **by_position, **named}, arguments[len(names) :]
    takes_rest = bool(code.co_flags & inspect.CO_VARARGS)
    if set(bound) != set(names) or set(by_position) & set(named) or (rest and not takes_rest):
        raise UncompilableError(
            f"{called.name} takes {', '.join(names)}; given are {len(arguments)} {list(named)}"
        )
    return [*(bound[name] for name in names), *rest]


def returned_type(kind: Any) -> ir.Type:
    """What an LLVM function returns for a structure."""
    parts = llvm_types(kind)
    if not parts:
        return ir.VoidType()
    return parts[0] if len(parts) == 1 else ir.LiteralStructType(parts)


def module_text(kernel: Emitted) -> str:
    """The text of an LLVM module: a kernel's function first, then all that it calls, once each."""
    kernels = [kernel]
    for emitted in kernels:
        kernels += [called for called in emitted.calls.values() if called not in kernels]
    needs: dict[str, str] = {}
    for emitted in kernels:
        needs.update(emitted.needs)
    return "\n".join([*needs.values(), *(emitted.text for emitted in kernels)])
