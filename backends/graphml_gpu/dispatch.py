"""What a lowering makes: dispatches of kernels on graph values, sizes and numbers, without addresses yet.

A lowering is a module-level `GpuLowering` value in any file of `graphml_gpu/lowering/`; it is found by
itself. `lower(node, context)` gives the dispatches of one node, in order; each sees what those before it
wrote.

    def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
        x = node.inputs[0]
        weight = node.inputs[1] if len(node.inputs) > 1 else NOTHING
        count = rows(x.shape[:-1])                                   # a number known at run time: T * ...
        return [
            Dispatch(
                rms_norm,                                            # a `@kernel` of graphml_gpu.kernels
                constants={"HAS_WEIGHT": weight is not NOTHING},     # its keyword-only arguments
                buffers={"x": x, "weight": weight, "out": node},     # its buffers, each by name
                scalars={"rows": count, "n": width(x), "eps": number(node, "eps")},
                groups=along(count),                                 # a group a row, long grids folded
            )
        ]

    NORM = GpuLowering(("rms_norm", "rms_norm_mul"), _lower, refuses=not_f32)

In the kernel the row of a grid made by `along` is `group_id(0) + group_id(1) * num_groups(0)`, and rows
beyond the last must be left alone (`if row < rows:`): a folded grid is a little larger than asked for.

What a buffer argument may be
-----------------------------
    Node            a value, seen through views; a weight, a state (also as an op that writes one gives it)
    NodeResult(node, i)
                    result i of a node that has several (inputs that are `part` views are plain nodes)
    Shard           some of a weight's first dimension: `context.shards(weight)`, see there
    GpuWorkspace(node)
                    scratch as `GpuLowering.workspace` asked for; in the arena, holds garbage at first
    Zeros(key, n)   n bytes of memory for this dispatch alone that are zero before its first run and that the
                    kernel leaves zero (counters of finished groups, say); the same key means the same memory
    HostConstant(make)
                    an array worked out on the host from the model's weights when the program is made
    NOTHING         for an argument that the kernel as specialised does not touch; some small buffer is bound

A buffer begins where its value begins; all values begin at multiples of 512 bytes. Arrays of f16 and of block
formats are bound as `Read[u32]` by their bytes; the last word may reach beyond the value, into padding.

A dispatch whose grid has a 0 is left out of the step: of alternatives that depend on dims each is a dispatch.

What a scalar or a grid may be: a number, or a function of the step's dims (symbol name -> value). `rows`
makes such functions, and anything that is called with dims is one: `lambda dims: dims["T"] * 4`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

from graphml.backend.node_values import HostConstant as HostConstant
from graphml.backend.node_values import NodeResult as NodeResult
from graphml.backend.node_values import number as number
from graphml.backend.node_values import width as width
from graphml.ir.node import Node
from graphml.ir.shape import Dim, Symbol
from graphml_gpu.tuning import UNTUNED, GpuTuning

if TYPE_CHECKING:
    from graphml_gpu.conversions_in_products import RowSource
    from graphml_gpu.driver import Facts
    from graphml_gpu.language import Features, Kernel
    from graphml_gpu.language.text_kernels import TextKernel

Dims = Mapping[str, int]
Scalar = int | float | Callable[[Dims], int | float]
Groups = tuple[int, int, int]
Grid = Groups | Callable[[Dims], Groups]

MOST_GROUPS = 65535
"""Groups along one dimension that every device can start."""
MOST_TURNS = 60000
"""Turns of long loops of an invocation that every driver makes: `Facts.loop_turns`, less short ones."""


@dataclass(frozen=True)
class Count:
    """A number of rows or elements: a factor times the values of symbols. Called with dims: its value."""

    factor: int
    symbols: tuple[Symbol, ...] = ()

    @property
    def bound(self) -> int:
        """The largest that it can be."""
        return self.factor * prod(symbol.bound for symbol in self.symbols)

    @property
    def fixed(self) -> bool:
        """Whether it is the same in every step."""
        return not self.symbols

    def __call__(self, dims: Dims) -> int:
        """Its value in a step."""
        value = self.factor
        for symbol in self.symbols:
            value *= dims[symbol.name]
        return value

    def __mul__(self, factor: int) -> Count:
        return Count(self.factor * factor, self.symbols)


@dataclass(frozen=True)
class Along:
    """A grid of one group per `per_group` of a count, folded into two dimensions where it is long."""

    count: Count
    per_group: int = 1
    z: int = 1

    def __call__(self, dims: Dims) -> Groups:
        """The groups of a step."""
        n = -(-self.count(dims) // self.per_group)
        x = min(n, MOST_GROUPS)
        return x, -(-n // x) if x else 0, self.z


@dataclass(frozen=True)
class GpuWorkspace:
    """The scratch that a node asked for in the plan, from a byte offset (a multiple of 512) on."""

    node: Node
    offset: int = 0


@dataclass(frozen=True)
class Zeros:
    """Memory that is zero before the first run and that the kernel leaves zero. key: a node's own, say."""

    key: Any
    n_bytes: int


@dataclass(frozen=True)
class Shard:
    """Entries `first` to `first + count` of a weight's first dimension: rows of a matrix, or experts."""

    node: Node
    first: int
    count: int


@dataclass(frozen=True)
class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
"""For a buffer that the kernel as specialised does not touch."""

Argument = Node | NodeResult | Shard | GpuWorkspace | Zeros | HostConstant | _Nothing


@dataclass(frozen=True)
class Dispatch:
    """One kernel call. label: what profiles call it, beside the node; "" means the kernel's name.

    turns: those of an invocation's loops where they may be many, see `Facts.loop_turns`. A device on which a
    number is too large refuses the node; of a function of dims the step is refused.
    """

    kernel: Kernel | TextKernel
    constants: Mapping[str, Any] = field(default_factory=dict)
    buffers: Mapping[str, Argument] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    groups: Grid = (1, 1, 1)
    label: str = ""
    turns: int | Callable[[Dims], int] = 0


@dataclass(frozen=True)
class DeviceView:
    """What a lowering may know of the device.

    features: what kernels are specialised for. facts: limits. shards: a weight -> the shards that are in
    buffers of their own, in order; one shard where a binding holds all of it. A kernel that reads a weight
    which may be that large is dispatched once a shard; a weight given as a `Node` must have one shard.
    largest: how far the values of an integer input go in a step, for grids and numbers that follow them (see
    `parameters.Largest`); None for a value that is no input. tuning: how products are shared out. own_row:
    how products make a row of activations for themselves; None for one that is in memory.
    """

    facts: Facts
    features: Features
    shards: Callable[[Node], Sequence[Shard]]
    largest: Callable[[Node], Callable[[Dims], int] | None]
    tuning: GpuTuning = UNTUNED
    own_row: Callable[[Node], RowSource | None] = lambda node: None


def _nothing_refused(node: Node) -> str | None:
    return None


def _no_workspace(node: Node) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class GpuLowering:
    """How some ops become dispatches.

    refuses: why a node of these ops has no kernel here, None where it has; such a node runs in NumPy.
    workspace: bytes of scratch of a node at its bounds. It may not depend on the device; an op that writes
    a state has none.
    """

    ops: tuple[str, ...]
    lower: Callable[[Node, DeviceView], Sequence[Dispatch]]
    refuses: Callable[[Node], str | None] = _nothing_refused
    workspace: Callable[[Node], int] = _no_workspace


@dataclass(frozen=True, eq=False)
class Joint:
    """Neighbours in a program that fewer dispatches make together than one by one.

    ops: of nodes that may take part. lower: nodes of these ops that follow each other -> their dispatches, or
    None where these cannot be made together. None of them reads what another makes, and no result is where
    another's operand does, so their order is of no matter.
    """

    ops: frozenset[str]
    lower: Callable[[Sequence[Node], DeviceView], Sequence[Dispatch] | None]


def rows(shape: Sequence[Dim]) -> Count:
    """The product of some dimensions, symbolic or not."""
    return Count(
        prod(dim for dim in shape if isinstance(dim, int)),
        tuple(dim for dim in shape if isinstance(dim, Symbol)),
    )


def along(count: Count | int, per_group: int = 1, z: int = 1) -> Along:
    """The grid of one group per `per_group` rows (or elements); see `Along`."""
    return Along(Count(count) if isinstance(count, int) else count, per_group, z)


def all_of(node: Node, *kinds: str) -> str | None:
    """Refuse a node whose inputs and results are not all of these dtypes."""
    values = (*(source.type for source in node.inputs), *(node.type.parts or (node.type,)))
    other = next((kind for kind in values if kind.dtype.name not in kinds), None)
    return None if other is None else f"no kernel of {node.op.name} for {other.dtype.name}"
