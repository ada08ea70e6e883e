"""What a lowering makes: kernel calls on graph values, sizes and numbers, without addresses yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from graphml.backend.node_values import HostConstant as HostConstant
from graphml.backend.node_values import NodeResult as NodeResult
from graphml.backend.node_values import number as number
from graphml.backend.node_values import width as width
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.shape import Dim, Symbol, bounds
from graphml_cpu.array_kernels.reference import ArrayKernelRef
from graphml_cpu.compiler import KernelRef
from graphml_cpu.kernels import formats

AnyKernelRef = KernelRef | ArrayKernelRef
"""A kernel of this package's language, or one over arrays, compiled by numba."""


@dataclass(frozen=True)
class RowCount:
    """A count known at run time: the value of a symbol (1 where there is none) times a number."""

    symbol: str | None
    factor: int


@dataclass(frozen=True)
class Scratch:
    """Bytes that each thread has for itself during one call."""

    n_bytes: int


@dataclass(frozen=True)
class CpuWorkspace:
    """The scratch that a node asked for in the plan, shared by all threads and by the node's calls."""

    node: Node


@dataclass(frozen=True)
class AddressTable:
    """Rows of addresses and of numbers, int64 each: what one kernel call works at in turn.

    Values of the graph, other than weights, are `reads` of the step, too.
    """

    rows: tuple[tuple[Node | int, ...], ...]


Argument = HostConstant | Node | NodeResult | RowCount | Scratch | AddressTable | CpuWorkspace | int | float


@dataclass(frozen=True)
class KernelCall:
    """One kernel call. `writes` names the arguments that the kernel writes; it reads all others.

    split: always shared among the threads, even where the node's value is made by each for itself. parts:
    into how many parts each thread's share is cut, if another number than usual. reads: what is read besides,
    through addresses in a table.
    """

    kernel: AnyKernelRef
    arguments: Mapping[str, Argument]
    writes: tuple[str, ...] = ("out",)
    split: bool = False
    parts: int | None = None
    reads: tuple[Node, ...] = ()


def one_step(
    kernel: AnyKernelRef, writes: tuple[str, ...] = ("out",), /, **arguments: Argument
) -> list[KernelCall]:
    """The calls of a node that a single kernel makes; arguments: of the kernel."""
    return [KernelCall(kernel, arguments, writes)]


@dataclass(frozen=True, eq=False)
class CpuLowering:
    """How some ops become kernel calls.

    refuses: why a node of these ops has no kernel; None where it has. workspace: bytes of shared scratch of a
    node on a number of threads. replicable: so cheap for one row that each thread may do it for itself
    rather than wait for another. shared: a node of which not even one row is so cheap. one_order: `lower` for
    programs in which the sums of a row may not depend on the rows beside it; None: they never do.
    """

    ops: tuple[str, ...]
    lower: Callable[[Node, int], list[KernelCall]]
    refuses: Callable[[Node], str | None] = lambda node: None
    workspace: Callable[[Node, int], int] = lambda node, threads: 0
    replicable: bool = False
    shared: Callable[[Node], bool] = lambda node: False
    one_order: Callable[[Node, int], list[KernelCall]] | None = None

    def steps(self, node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
        """The kernel calls of a node; one_order: those that add up a row in one order, see docs/cpu.md."""
        lower = self.one_order if one_order and self.one_order is not None else self.lower
        return lower(node, threads)


def rows(shape: tuple[Dim, ...]) -> RowCount:
    """The product of some dimensions, of which at most one is symbolic."""
    symbols = [dim for dim in shape if isinstance(dim, Symbol)]
    factor = prod(dim for dim in shape if isinstance(dim, int))
    return RowCount(symbols[0].name if symbols else None, factor)


def leading(node: Node) -> RowCount:
    """How many rows a value has: all dimensions but the last."""
    return rows(node.shape[:-1])


def row_bytes(value: Node | Type) -> int:
    """Bytes of one row of a plain value."""
    return value.dtype.bytes_for(width(value))


def decodable(table: Node) -> str | None:
    """Refuse rows whose elements no kernel decodes."""
    return None if table.dtype.name in formats.names() else f"no kernel decodes {table.dtype.name}"


def cache_type(state: Node) -> str | None:
    """Refuse a cache whose elements no kernel reads or writes, or whose rows end within a block."""
    kind = state.dtype
    if kind.name not in CACHE_DTYPES:
        return f"no kernel keeps a cache of {kind.name}"
    cut = bounds(state.shape)[-1] % kind.block_elements
    return f"{kind.name} comes in blocks of {kind.block_elements}; got {state.type}" if cut else None


def four_bytes(node: Node) -> str | None:
    """Refuse elements that are not moved as 4 bytes each."""
    kind = node.dtype.numpy
    return (
        None if kind is not None and kind.itemsize == 4 else f"no kernel moves elements of {node.dtype.name}"
    )
