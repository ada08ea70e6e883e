"""Elements by number, the largest elements, and the best groups of them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml_gpu.dispatch import Context, Dispatch, Lowering, Scalar, all_of, along, rows, width
from graphml_gpu.kernels.choose import best_groups, column_numbers, gather, top_k
from graphml_gpu.lowering.groups import for_elements, for_row


def _lower_top_k(node: Node, context: Context) -> list[Dispatch]:
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
    return [Dispatch(column_numbers, constants, {"out": node}, {"n": count, "width": width(node)}, grid)]


TOP_K = Lowering(("top_k",), _lower_top_k, refuses=lambda node: all_of(node, "f32", "i32"))
BEST_GROUPS = Lowering(("best_groups",), _lower_best_groups, refuses=lambda node: all_of(node, "f32"))
GATHER = Lowering(("gather",), _lower_gather, refuses=lambda node: all_of(node, "f32", "i32"))
COLUMN_NUMBERS = Lowering(("column_numbers",), _lower_column_numbers)
