"""Kernels of rows: how a plain function of arrays and a range of rows is called for a node.

`function(out, x, weight, begin, end, eps)`: the results, the operands, the range, then attributes by name. A
row is the last dimension; a value with the leading dimensions of the (first) result is seen as [rows, width],
any other with its own shape. An operand that may have these dimensions by chance is one of `whole`: it is
always seen with its own shape. Knows nodes; nothing of numba.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NoReturn

from graphml.errors import BackendError, did_you_mean
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Type
from graphml.ir.own_op import OwnOp
from graphml.ir.own_signature import OwnSignature, place_of
from graphml.ir.shape import Symbol
from graphml_cpu.array_kernels.reference import BEGIN, END
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall, NodeResult


def parameters(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The names of a kernel's arrays, and of its attributes; `BackendError` where it has no range of rows."""
    python = getattr(function, "py_func", function)
    names = list(inspect.signature(python).parameters)
    if BEGIN not in names or names.index(BEGIN) + 1 >= len(names) or names[names.index(BEGIN) + 1] != END:
        raise BackendError(
            f"{place_of(function)}: kernel {python.__name__}({', '.join(names)}): wanted the results and the "
            "operands, then `begin, end`, then attributes"
        )
    at = names.index(BEGIN)
    return names[:at], names[at + 2 :]


def results_of(node: Node) -> list[Node | NodeResult]:
    """What a node's kernel writes."""
    return [NodeResult(node, i) for i in range(len(node.type.parts))] if node.type.parts else [node]


def refuses_rows(node: Node) -> str | None:
    """Why a node's rows cannot be shared: the first result has no single number of rows."""
    first = (node.type.parts or (node.type,))[0]
    if first.shape and isinstance(first.shape[-1], Symbol):
        return f"{node.name} has rows whose width is the symbol {first.shape[-1].name}"
    return None


def check_parameters(
    function: Callable[..., Any], declared: OwnSignature, backend: str, options: Mapping[str, Any]
) -> None:
    """A `BackendError` where a kernel's arguments or options are not those of its op and of numba."""

    def fail(reason: str) -> NoReturn:
        raise BackendError(f"op {declared.name!r} ({declared.source}): its kernel for {backend}: {reason}")

    if not isinstance(getattr(function, "py_func", function), FunctionType):
        fail(f"wanted a function `(out, ..., begin, end, ...)`, made by `def`; got {function!r:.100}")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            fail(
                f"({place_of(function)}): parameter {parameter}: wanted plain parameters, without `*` or `/`"
            )
    _check_options(options, declared, fail)
    arrays, attributes = parameters(function)
    n_results = len(arrays) - len(declared.operands)
    wanted = f"{', '.join(['out', *declared.operands, BEGIN, END, *declared.kinds])}"
    unknown = set(attributes) - set(declared.kinds)
    if n_results < 1 or tuple(arrays[n_results:]) != declared.operands or unknown:
        raise BackendError(
            f"op {declared.name}: its kernel for {backend} ({place_of(function)}) has the parameters "
            f"{', '.join([*arrays, BEGIN, END, *attributes])}; wanted {wanted} "
            "(attributes that it does not use may be left out)"
        )


OPTIONS = ("fastmath", "error_model", "boundscheck", "inline", "forceinline")
"""Options of numba that a kernel of one's own may have."""


def _check_options(
    options: Mapping[str, Any], declared: OwnSignature, fail: Callable[[str], NoReturn]
) -> None:
    for name, value in options.items():
        if name == "whole":
            if not isinstance(value, tuple | list) or not all(
                operand in declared.operands for operand in value
            ):
                fail(f"whole: wanted operands in a tuple, of {declared.operands}; got {value!r}")
        elif name not in OPTIONS:
            known = ("whole", *OPTIONS)
            fail(f"no option {name!r}; wanted some of {', '.join(known)}.{did_you_mean(name, known)}")
        elif not isinstance(value, bool | str) and not _are_names(value):
            fail(f"{name}: wanted True, False, a name or a set of names; got {value!r}")


def _are_names(value: Any) -> bool:
    return isinstance(value, set | frozenset) and all(isinstance(operand, str) for operand in value)


def row_step(
    node: Node,
    function: Callable[..., Any],
    name: str = "",
    options: Mapping[str, Any] | None = None,
) -> KernelCall:
    """The call of a kernel of rows for a node. options: `whole`, names of operands, and numba's own."""
    given_options = dict(options or {})
    whole = given_options.pop("whole", ())
    names, attributes = parameters(function)
    values = [*results_of(node), *node.inputs]
    if len(names) != len(values):
        raise BackendError(
            f"{place_of(function)}: the kernel of {node.op.name} has the arrays {', '.join(names)}; "
            f"wanted {len(results_of(node))} results and {len(node.inputs)} operands"
        )
    unknown = [attribute for attribute in attributes if attribute not in node.attributes]
    if unknown:
        raise BackendError(
            f"{place_of(function)}: the kernel of {node.op.name} has a parameter {unknown[0]!r} behind "
            f"`end`; wanted one of its attributes {sorted(node.attributes)}"
        )
    lead = _type(values[0]).shape[:-1]
    typed = node.op.fitted(node.attributes) if isinstance(node.op, OwnOp) else node.attributes
    chosen: dict[str, Attribute] = {attribute: typed[attribute] for attribute in attributes}
    return array_step(
        function,
        {
            operand: as_stored(value) if operand in whole else _as_rows(value, lead)
            for operand, value in zip(names, values, strict=True)
        },
        joined(lead, node.name),
        writes=tuple(names[: len(results_of(node))]),
        attributes=chosen,
        options=given_options,
        name=name or node.op.name,
    )


def _type(value: Node | NodeResult) -> Type:
    return ArrayValue(value, ()).type


def _as_rows(value: Node | NodeResult, lead: tuple[Any, ...]) -> ArrayValue:
    """A value with these leading dimensions as [rows, width]; any other with its own shape."""
    kind = _type(value)
    if kind.shape[:-1] != lead or not kind.shape:
        return as_stored(value)
    stored = as_stored(value)
    return ArrayValue(value, (joined(lead, str(value)), stored.shape[-1]))
