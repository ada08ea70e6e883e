"""A call of a kernel over arrays: a plain function of arrays, a range of rows, and attributes.

`function(*arrays, begin, end, **attributes)` computes rows `begin` to `end`; each thread has a range of its
own. Knows graph values and sizes; nothing of numba, addresses or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.errors import BackendError
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Type
from graphml.ir.shape import Dim, Shape, Symbol, bounds
from graphml.ir.state_order import state_of
from graphml_cpu.array_kernels.reference import RAISED, ROWS, ArrayKernelRef, ArraySlot, dim_slot
from graphml_cpu.lowering.step import Argument, HostConstant, KernelCall, NodeResult, RowCount


@dataclass(frozen=True)
class ArrayValue:
    """A value as an array argument: the graph's value, and the shape that the kernel sees.

    Of a block format the array is uint8, its last dimension in bytes. kind: the type of a constant, which is
    computed from the weights when a program is made.
    """

    value: Node | NodeResult | HostConstant
    shape: tuple[Dim | RowCount, ...]
    kind: Type | None = None

    @property
    def type(self) -> Type:
        """The type of the value."""
        value = self.value
        if isinstance(value, HostConstant):
            assert self.kind is not None
            return self.kind
        return value.node.type.parts[value.index] if isinstance(value, NodeResult) else value.type


def as_stored(value: Node | NodeResult, shape: Shape | None = None) -> ArrayValue:
    """A value with its own shape, or another; the last dimension of a block format in bytes.

    A symbol behind the first dimension, of a block table [S, B], is as large as in memory: its bound.
    """
    kind = ArrayValue(value, ()).type
    shape = kind.shape if shape is None else shape
    shape = (*shape[:1], *bounds(shape[1:]))
    if kind.dtype.is_format and not isinstance(shape[-1], Symbol):
        shape = (*shape[:-1], kind.dtype.bytes_for(shape[-1]))
    return ArrayValue(value, shape)


def array_step(
    function: Callable[..., Any],
    arrays: Mapping[str, ArrayValue],
    rows: RowCount,
    *,
    writes: tuple[str, ...] = ("out",),
    attributes: Mapping[str, Attribute] | None = None,
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> KernelCall:
    """One call of `function(*arrays, begin, end, **attributes)`, its rows shared by the threads.

    arrays: in the order of the function's parameters. writes: the names of those that it writes. A float
    attribute is a float32 at run time; any other is compiled in, so that loops over it can be unrolled.
    """
    slots, arguments = [], dict[str, Argument]()
    for key, array in arrays.items():
        kind = array.type.dtype.numpy or np.dtype(np.uint8)
        kind = np.dtype(np.uint16) if kind == np.float16 else kind
        moves = isinstance(array.value, Node) and state_of(array.value) is not None
        slots.append(ArraySlot(key, kind.name, len(array.shape), moves))
        arguments[key] = array.value
        arguments |= {dim_slot(key, i): _dim(dim) for i, dim in enumerate(array.shape)}
    values = attributes or {}
    numbers = {key: value for key, value in values.items() if isinstance(value, float)}
    constants = tuple((key, value) for key, value in values.items() if key not in numbers)
    ref = ArrayKernelRef(
        name or function.__name__, function, tuple(slots), tuple(numbers), constants,
        tuple((key, _ordered(value)) for key, value in (options or {}).items()),
    )  # fmt: skip
    return KernelCall(ref, {**arguments, ROWS: rows, **numbers, RAISED: 0}, writes)


def _ordered(value: Any) -> Any:
    """A set as an ordered tuple: it has a hash, which is the same in each process."""
    return tuple(sorted(value)) if isinstance(value, set | frozenset) else value


def _dim(dim: Dim | RowCount) -> RowCount:
    if isinstance(dim, RowCount):
        return dim
    return RowCount(dim.name, 1) if isinstance(dim, Symbol) else RowCount(None, dim)


def joined(dims: Shape, what: str) -> RowCount:
    """The product of some dimensions, of which at most one is a symbol."""
    symbols = [dim.name for dim in dims if isinstance(dim, Symbol)]
    if len(symbols) > 1:
        raise BackendError(f"{what} has several symbolic dimensions: {', '.join(symbols)}")
    factor = 1
    for dim in dims:
        factor *= 1 if isinstance(dim, Symbol) else dim
    return RowCount(symbols[0] if symbols else None, factor)
