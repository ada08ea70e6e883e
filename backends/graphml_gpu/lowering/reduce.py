"""Softmax and sums over the last dimension, also of exponentials; means over rows."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import max_elements
from graphml_gpu.dispatch import (
    Argument,
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
from graphml_gpu.kernels.reduce import exp_sums, log_of_sums, mean_rows, softmax, sum_rows
from graphml_gpu.lowering.groups import for_elements, for_row

_BLOCK = 4096
"""Elements of a row that a workgroup takes, where rows are long."""


def _lower(node: Node, context: Context) -> list[Dispatch]:
    x = node.inputs[0]
    kernel = {"softmax": softmax, "sum_rows": sum_rows}[node.op.name]
    count = rows(x.shape[:-1])
    scalars: dict[str, Scalar] = {"rows": count, "n": width(x)}
    return [Dispatch(kernel, for_row(width(x)), {"x": x, "out": node}, scalars, along(count))]


def _blocks(node: Node) -> int:
    return -(-width(node.inputs[0]) // _BLOCK)


def _lower_log_sum_exp(node: Node, context: Context) -> list[Dispatch]:
    x = node.inputs[0]
    count, n, blocks = rows(x.shape[:-1]), width(x), _blocks(node)
    sums = Workspace(node)

    def grid(dims: Dims) -> Groups:
        return blocks, count(dims), 1

    sizes = {"SIZE": _BLOCK, **for_row(min(n, _BLOCK))}
    scalars: dict[str, Scalar] = {"rows": count, "blocks": blocks}
    return [
        Dispatch(exp_sums, sizes, {"x": x, "sums": sums}, {"n": n}, grid),
        Dispatch(log_of_sums, {}, {"sums": sums, "out": node}, scalars, along(count)),
    ]


LOG_SUM_EXP = Lowering(
    ("log_sum_exp",),
    _lower_log_sum_exp,
    refuses=lambda node: all_of(node, "f32"),
    workspace=lambda node: max_elements(node.shape[:-1]) * _blocks(node) * 8,
)
REDUCE = Lowering(("softmax", "sum_rows"), _lower, refuses=lambda node: all_of(node, "f32"))


def _lower_mean_rows(node: Node, context: Context) -> list[Dispatch]:
    x, numbers, sequences, _ = node.inputs
    count = rows(node.shape)
    constants, grid = for_elements(count)
    scalars: dict[str, Scalar] = {"count": count, "rows": rows(x.shape[:1]), "n": width(x)}
    buffers: dict[str, Argument] = {"x": x, "numbers": numbers, "sequences": sequences, "out": node}
    return [Dispatch(mean_rows, constants, buffers, scalars, grid)]


MEAN_ROWS = Lowering(("mean_rows",), _lower_mean_rows, refuses=lambda node: all_of(node, "f32", "i32"))
