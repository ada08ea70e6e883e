"""Elements by number, the largest elements, and the best groups of them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.shape import max_elements
from graphml_gpu.dispatch import (
    Context,
    Dims,
    Dispatch,
    Groups,
    Lowering,
    Scalar,
    Workspace,
    all_of,
    along,
    rows,
    width,
)
from graphml_gpu.kernels.choose import (
    best_groups,
    column_numbers,
    gather,
    top_k,
    top_k_of_blocks,
    top_k_of_chosen,
)
from graphml_gpu.lowering.groups import for_elements, for_row

_BLOCK = 4096
"""Elements of a long row, such as logits, that a workgroup chooses among."""
_LONG = 4 * _BLOCK
_MOST_OF_BLOCKS = 128


def _long(node: Node) -> bool:
    return width(node.inputs[0]) >= _LONG and width(node) <= _MOST_OF_BLOCKS


def _chosen(node: Node) -> int:
    """What is chosen of all blocks of a row."""
    return -(-width(node.inputs[0]) // _BLOCK) * width(node)


def _workspace(node: Node) -> int:
    return max_elements(node.shape[:-1]) * _chosen(node) * 8 if _long(node) else 0


def _lower_long(node: Node, context: Context) -> list[Dispatch]:
    x, k = node.inputs[0], width(node)
    count, n = rows(x.shape[:-1]), width(x)
    chosen = Workspace(node)

    def grid(dims: Dims) -> Groups:
        return -(-n // _BLOCK), count(dims), 1

    scalars: dict[str, Scalar] = {"rows": count, "n": _chosen(node), "k": k}
    return [
        Dispatch(top_k_of_blocks, {"SIZE": _BLOCK}, {"x": x, "chosen": chosen}, {"n": n, "k": k}, grid),
        Dispatch(top_k_of_chosen, {}, {"chosen": chosen, "out": node}, scalars, along(count)),
    ]


def _lower_top_k(node: Node, context: Context) -> list[Dispatch]:
    if _long(node):
        return _lower_long(node, context)
    x = node.inputs[0]
    count = rows(x.shape[:-1])
    scalars: dict[str, Scalar] = {"rows": count, "n": width(x), "k": width(node)}
    return [Dispatch(top_k, for_row(width(x)), {"x": x, "out": node}, scalars, along(count))]


def _lower_best_groups(node: Node, context: Context) -> list[Dispatch]:
    x, n_group = node.inputs[0], integer(node.attributes, "n_group")
    count = rows(x.shape[:-1])
    constants = {"N_GROUP": n_group, "SIZE": width(x) // n_group, **for_row(width(x))}
    scalars: dict[str, Scalar] = {"rows": count, "used": integer(node.attributes, "n_group_used")}
    return [Dispatch(best_groups, constants, {"x": x, "out": node}, scalars, along(count))]


def _lower_gather(node: Node, context: Context) -> list[Dispatch]:
    x, ids = node.inputs
    count = rows(node.shape)
    constants, grid = for_elements(count)
    scalars: dict[str, Scalar] = {"n": count, "k": width(node), "width": width(x)}
    return [Dispatch(gather, constants, {"x": x, "ids": ids, "out": node}, scalars, grid)]


def _lower_column_numbers(node: Node, context: Context) -> list[Dispatch]:
    count = rows(node.shape)
    constants, grid = for_elements(count)
    scalars: dict[str, Scalar] = {
        "n": count,
        "width": width(node),
        "each": integer(node.attributes, "each"),
    }
    return [Dispatch(column_numbers, constants, {"out": node}, scalars, grid)]


TOP_K = Lowering(
    ("top_k",), _lower_top_k, refuses=lambda node: all_of(node, "f32", "i32"), workspace=_workspace
)
BEST_GROUPS = Lowering(("best_groups",), _lower_best_groups, refuses=lambda node: all_of(node, "f32"))
GATHER = Lowering(("gather",), _lower_gather, refuses=lambda node: all_of(node, "f32", "i32"))
COLUMN_NUMBERS = Lowering(("column_numbers",), _lower_column_numbers)
