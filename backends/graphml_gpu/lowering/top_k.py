"""Elements by number, the largest elements, and the top k groups of them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.shape import max_elements
from graphml_gpu.dispatch import (
    MOST_TURNS,
    DeviceView,
    Dims,
    Dispatch,
    GpuLowering,
    GpuWorkspace,
    Groups,
    Scalar,
    all_of,
    along,
    rows,
    width,
)
from graphml_gpu.kernels.indexing.top_k import (
    column_maxima,
    column_numbers,
    gather,
    top_k,
    top_k_groups,
    top_k_of_columns,
)
from graphml_gpu.lowering.groups import for_row, per_element, per_row
from graphml_gpu.node_support import aligned

_LONG = 4096
"""A row of so many elements, such as logits, is looked through by several workgroups."""
_COLUMNS, _OF_LONGEST, _LONGEST = 512, 1024, 1 << 16
"""Columns that a long row is cut into; those of the longest, of so many elements and more."""
_MOST_OF_COLUMNS = 128
_LONGEST_OF_COLUMNS = _OF_LONGEST * MOST_TURNS // 80
"""Where each of the k largest is looked for among k of each column: about half a turn for each of those."""
_TURNS_OF_MAX = 20
"""Of what an element costs beside reading a row: a maximum of the workgroup, at most."""


def _columns(node: Node) -> int:
    """How many columns the rows are cut into; 0: they are not."""
    n = width(node.inputs[0])
    columns = _OF_LONGEST if n >= _LONGEST else _COLUMNS
    long = max(_LONG, columns) <= n <= _LONGEST_OF_COLUMNS
    return columns if long and width(node) <= min(_MOST_OF_COLUMNS, columns) else 0


def _maxima_bytes(node: Node) -> int:
    return aligned(max_elements(node.shape[:-1]) * _columns(node) * 8)


def _workspace(node: Node) -> int:
    columns = _columns(node)
    if not columns:
        return 0
    room = width(node) * -(-width(node.inputs[0]) // columns)
    return _maxima_bytes(node) + max_elements(node.shape[:-1]) * room * 8


def _lower_long(node: Node, columns: int) -> list[Dispatch]:
    x, k = node.inputs[0], width(node)
    count, n = rows(x.shape[:-1]), width(x)
    maxima, candidates = GpuWorkspace(node), GpuWorkspace(node, _maxima_bytes(node))
    sizes = {"GROUP": 64, "COLUMNS": columns}

    def grid(dims: Dims) -> Groups:
        return -(-columns // sizes["GROUP"]), count(dims), 1

    scalars: dict[str, Scalar] = {"rows": count, "n": n, "k": k}
    return [
        Dispatch(column_maxima, sizes, {"x": x, "maxima": maxima}, {"n": n}, grid),
        Dispatch(
            top_k_of_columns,
            {"COLUMNS": columns, "MOST": _MOST_OF_COLUMNS},
            {"x": x, "maxima": maxima, "found": candidates, "out": node},
            scalars,
            along(count),
        ),
    ]


def _lower_top_k(node: Node, context: DeviceView) -> list[Dispatch]:
    columns = _columns(node)
    if columns:
        return _lower_long(node, columns)
    x = node.inputs[0]
    count, k, sizes = rows(x.shape[:-1]), width(node), for_row(width(x))
    turns = -(-width(x) // sizes["GROUP"]) + _TURNS_OF_MAX  # for each of the k
    at_once = max(1, MOST_TURNS // turns)
    scalars: dict[str, Scalar] = {"rows": count, "n": width(x), "k": k}
    return [
        Dispatch(
            top_k,
            sizes,
            {"x": x, "out": node},
            {**scalars, "first": first, "last": min(first + at_once, k)},
            along(count),
            turns=min(at_once, k) * turns,
        )
        for first in range(0, k, at_once)
    ]


def _lower_top_k_groups(node: Node, context: DeviceView) -> list[Dispatch]:
    x, n_group = node.inputs[0], integer(node.attributes, "n_group")
    count, used = rows(x.shape[:-1]), integer(node.attributes, "n_group_used")
    constants = {"N_GROUP": n_group, "SIZE": width(x) // n_group}
    return per_row(top_k_groups, count, width(x), constants, x=x, out=node, rows=count, used=used)


def _lower_gather(node: Node, context: DeviceView) -> list[Dispatch]:
    x, ids = node.inputs
    count = rows(node.shape)
    return per_element(gather, count, x=x, ids=ids, out=node, n=count, k=width(node), width=width(x))


def _lower_column_numbers(node: Node, context: DeviceView) -> list[Dispatch]:
    count, each = rows(node.shape), integer(node.attributes, "each")
    return per_element(column_numbers, count, out=node, n=count, width=width(node), each=each)


TOP_K = GpuLowering(
    ("top_k",), _lower_top_k, refuses=lambda node: all_of(node, "f32", "i32"), workspace=_workspace
)
TOP_K_GROUPS = GpuLowering(("top_k_groups",), _lower_top_k_groups, refuses=lambda node: all_of(node, "f32"))
GATHER = GpuLowering(("gather",), _lower_gather, refuses=lambda node: all_of(node, "f32", "i32"))
COLUMN_NUMBERS = GpuLowering(("column_numbers",), _lower_column_numbers)
