"""Reductions over the last dimension, most of which share long rows chunk by chunk; means of rows."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import LONG_ROW, row_chunks
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    CpuWorkspace,
    KernelCall,
    leading,
    one_step,
    row_bytes,
    rows,
    width,
)

_MODULE = "graphml_cpu.kernels.reductions.reduce"
_TO_NUMBERS = ("sum_rows", "max_rows", "min_rows")
_WHOLE = {
    "softmax": KernelRef("softmax", _MODULE, "make_softmax"),
    **{op: KernelRef(op, _MODULE, "make_reduce_rows", (op,)) for op in _TO_NUMBERS},
}
_CHUNKS = {
    "softmax": KernelRef("softmax_chunks", _MODULE, "make_softmax_chunks"),
    **{op: KernelRef(f"{op}_chunks", _MODULE, "make_reduce_chunks", (op,)) for op in _TO_NUMBERS},
}


def _long(node: Node) -> bool:
    return width(node.inputs[0]) >= LONG_ROW


def _workspace(node: Node, threads: int) -> int:
    x = node.inputs[0]
    numbers = 2 if node.op.name == "softmax" else 1  # of each chunk: the sum, of softmax the largest, too
    return max_elements(x.shape[:-1]) * row_chunks(width(x)) * 4 * numbers if _long(node) else 0


def _lower(node: Node, threads: int) -> list[KernelCall]:
    x, op = node.inputs[0], node.op.name
    source: dict[str, Argument] = {"x": x, "n": width(x), "x_stride": row_bytes(x), "rows": leading(x)}
    result: dict[str, Argument] = {"out": node}
    if op == "softmax":
        result["out_stride"] = row_bytes(node)
    if not _long(node):
        return [KernelCall(_WHOLE[op], source | result)]
    partial: dict[str, Argument] = {"partial": CpuWorkspace(node)}
    if op == "softmax":
        joined = KernelRef("softmax_of_chunks", _MODULE, "make_softmax_of_chunks")
        rest = {name: source[name] for name in ("n", "rows")}
        return [
            KernelCall(_CHUNKS[op], source | partial | result, writes=("partial", "out")),
            KernelCall(joined, partial | result | rest),
        ]
    n = row_chunks(width(x))
    sums: dict[str, Argument] = {"x": partial["partial"], "n": n, "x_stride": 4 * n, "rows": leading(x)}
    return [
        KernelCall(_CHUNKS[op], source | partial, writes=("partial",)),
        KernelCall(_WHOLE[op], sums | result),
    ]


REDUCE = CpuLowering(
    ("softmax", *_TO_NUMBERS),
    _lower,
    workspace=_workspace,
    replicable=True,
    shared=_long,
)


def _lower_cumsum(node: Node, threads: int) -> list[KernelCall]:
    (x,) = node.inputs
    ref = KernelRef("cumsum", _MODULE, "make_cumsum")
    return one_step(
        ref, x=x, out=node, n=width(x), x_stride=row_bytes(x), out_stride=row_bytes(node), rows=leading(x)
    )


CUMSUM = CpuLowering(("cumsum",), _lower_cumsum, replicable=True)


def _lower_mean(node: Node, threads: int) -> list[KernelCall]:
    x, output_rows, sequences, _ = node.inputs
    ref = KernelRef("mean_rows", "graphml_cpu.kernels.reductions.mean_rows", "make_mean_rows")
    return one_step(
        ref, x=x, output_rows=output_rows, sequences=sequences, out=node, n=width(x),
        n_sequences=leading(node), n_tokens=rows(sequences.shape), rows=leading(x),
    )  # fmt: skip


MEAN_ROWS = CpuLowering(("mean_rows",), _lower_mean)
