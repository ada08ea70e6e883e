"""What the lowerings of products share: how a weight is read, and which kernel meets how many rows.

Knows weights, shapes and kernels; which op adds what to a product is the families' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphml.ir.node import Node
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import (
    NOTHING,
    Argument,
    Count,
    DeviceView,
    Dims,
    Dispatch,
    Grid,
    Groups,
    HostConstant,
    Scalar,
    along,
    rows,
)
from graphml_gpu.kernels import formats
from graphml_gpu.kernels.products.mat_mul import MAT_MUL
from graphml_gpu.kernels.products.mat_mul_int8 import MAT_MUL_INT8
from graphml_gpu.kernels.products.mat_vec import MAT_VEC
from graphml_gpu.tuning import Product, many_rows, takes_few

_ENOUGH_GROUPS = 512
"""Workgroups that keep a large device busy: with more of them each makes its row for several turns."""


def readable(weight: Node) -> str | None:
    """Refuse a value of a dtype that kernels cannot read."""
    if weight.dtype.name in formats.names():
        return None
    return f"no kernel reads {weight.dtype.name}"


def multiplies_integers(kind: str) -> bool:
    """Whether products of a format take activations of 8 bits."""
    return kind in formats.names() and formats.reader(kind).integers is not None


def not_multiplied(weight: Node, x: Node) -> str | None:
    """Refuse a weight that no product reads, and activations that it does not meet."""
    if x.dtype.name == "q8_1" and multiplies_integers(weight.dtype.name):
        return None
    return readable(weight) or not_f32(x)


def form_of(weight: Node, x: Node, context: DeviceView) -> str:
    """Which form of the kernels a weight and its activations take: see `kernels.products.mat_vec.MAT_VEC`."""
    if x.dtype.name != "q8_1":
        return "f32x4" if bounds(x.shape)[-1] % 4 == 0 else "f32"
    integers = formats.reader(weight.dtype.name).integers
    assert integers is not None
    return ("wide " if integers.wide else "") + ("own " if context.own_row(x) else "") + "int8"


@dataclass(frozen=True)
class ProductActivations:
    """What the kernels for few rows are told of their activations."""

    constants: Mapping[str, Any]
    buffers: Mapping[str, Argument]
    scalars: Mapping[str, Scalar]


def activations(x: Node, context: DeviceView) -> ProductActivations:
    """The rows as they are in memory, or what each workgroup makes its one row of."""
    row = context.own_row(x)
    if row is None:
        return ProductActivations({}, {"x": x, "scale": NOTHING, "shift": NOTHING}, {"eps": 0.0})
    constants = {"OWN": row.kind, "SHIFTED": row.shift is not None, "K": bounds(x.shape)[-1]}
    scale, shift = row.scale or NOTHING, row.shift or NOTHING
    return ProductActivations(constants, {"x": row.source, "scale": scale, "shift": shift}, {"eps": row.eps})


def not_f32(node: Node) -> str | None:
    """Refuse a value that is not float32."""
    return None if node.dtype.name == "f32" else f"no kernel for {node.name} in {node.dtype.name}"


@dataclass(frozen=True)
class Slab:
    """Rows `first` to `first + count` of a matrix, or matrices of a stack, in a buffer of their own."""

    argument: Argument
    first: int
    count: int


def slabs(weight: Node, context: DeviceView) -> Sequence[Slab]:
    """The buffers that hold a matrix: one, but for weights that are larger than a binding.

    A weight seen in another shape is taken whole: its shards are rows of the shape that it has in the file.
    """
    if weight.op is not weight_leaf:
        return (Slab(weight, 0, bounds(weight.shape)[0]),)
    return [Slab(shard, shard.first, shard.count) for shard in context.shards(weight)]


def table_of(*weights: Node) -> Argument:
    """The table that the weights' format looks things up in."""
    tables = {formats.reader(weight.dtype.name).table for weight in weights} - {None}
    if not tables:
        return NOTHING
    (make,) = tables
    return _constant(make)


_CONSTANTS: dict[Any, HostConstant] = {}


def _constant(make: Any) -> HostConstant:
    """One constant a table, so that it is uploaded once."""
    return _CONSTANTS.setdefault(make, HostConstant(lambda weights: make()))


def same_table(weights: Sequence[Node]) -> bool:
    """Whether one table serves all of them."""
    return len({formats.reader(weight.dtype.name).table for weight in weights} - {None}) <= 1


def layout(weight: Node) -> dict[str, Any]:
    """Compile-time facts of a weight's rows."""
    k = bounds(weight.shape)[-1]
    return {"FORMAT": weight.dtype.name, "ALIGN": formats.reader(weight.dtype.name).align(k)}


def is_few(columns: Count, x: Node, context: DeviceView) -> bool:
    """Whether the kernels for few rows make a product."""
    return takes_few(context.facts, columns.bound, x.dtype.name)


def parameters(context: DeviceView, weight: Node, x: Node, columns: Count) -> dict[str, Any]:
    """How a product's kernel shares it out."""
    *_, n, k = bounds(weight.shape)
    shape = Product(weight.dtype.name, n, k, columns.bound, x.dtype.name)
    return {**context.tuning.parameters(context.facts, shape), "EVEN": k % 16 == 0}


def rows_per_group(way: Mapping[str, Any]) -> int:
    """Rows of weights that a group of the kernels for few rows works at."""
    return int(way["GROUP"] // way["LANES"] * way["ROWS"])


def grid(n_groups: int, columns: Count, per_group: int) -> Grid:
    """Groups along the rows of weights, folded; blocks of columns in z."""
    folded = along(n_groups)

    def groups(dims: Dims) -> Groups:
        x, y, _ = folded(dims)
        return x, y, -(-columns(dims) // per_group)

    return groups


def product(
    weight: Node,
    x: Node,
    y: Argument,
    context: DeviceView,
    bias: Argument = NOTHING,
    residual: Argument = NOTHING,
    glu: str = "",
) -> list[Dispatch]:
    """y [columns, n] = weight x + bias + residual. glu: y holds a gate's product; the result goes through it.

    Only the kernels for many rows take glu.
    """
    columns = rows(x.shape[:-1])
    n, k = bounds(weight.shape)
    constants: dict[str, Any] = {
        **layout(weight),
        "BIAS": bias is not NOTHING,
        "RESIDUAL": residual is not NOTHING,
    }
    way, few = parameters(context, weight, x, columns), is_few(columns, x, context)
    if glu and few:
        shape = Product(weight.dtype.name, n, k, columns.bound, x.dtype.name)
        way = {**many_rows(context.facts, shape), "EVEN": k % 16 == 0}
    if glu:
        constants["GLU"] = glu
    rows_of = ProductActivations({}, {"x": x}, {})
    if few and not glu:
        rows_of = activations(x, context)
    constants |= rows_of.constants
    buffers = {**rows_of.buffers, "table": table_of(weight), "bias": bias, "residual": residual, "y": y}
    scalars: dict[str, Scalar] = {**rows_of.scalars, "k": k, "columns": columns, "stride": n}
    dispatches = []
    for slab in slabs(weight, context):
        if few and not glu:
            kernel = MAT_VEC[form_of(weight, x, context)]
            n_groups = -(-slab.count // rows_per_group(way))
            if context.own_row(x) is not None:
                way["TURNS"] = max(1, n_groups // _ENOUGH_GROUPS)
            groups = grid(-(-n_groups // way.get("TURNS", 1)), columns, way["COLUMNS"])
        else:
            kernel = {**MAT_MUL, **MAT_MUL_INT8}[form_of(weight, x, context)]
            groups = _tiles(slab.count, columns, way)
        dispatches.append(
            Dispatch(
                kernel,
                {**constants, **way},
                {**buffers, "w": slab.argument},
                {**scalars, "n": slab.count, "first": slab.first},
                groups,
            )
        )
    return dispatches


def _tiles(n: int, columns: Count, way: Mapping[str, Any]) -> Grid:
    across = -(-n // way["TILE_ROWS"])
    return lambda dims: (across, -(-columns(dims) // way["TILE_COLUMNS"]), 1)
