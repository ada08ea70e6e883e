"""Paged attention: one pass over the cache, cut into chunks for all threads, and the sum of the chunks."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import attention_partial_bytes
from graphml_cpu.lowering.step import Argument, Lowering, Step, Workspace, number, rows

_MODULE = "graphml_cpu.kernels.attention"


def _workspace(node: Node, threads: int) -> int:
    tokens, n_head, d_v = bounds(node.shape)
    return attention_partial_bytes(tokens, n_head, d_v)


def _lower(node: Node, threads: int) -> list[Step]:
    q, k, v, positions, sequences, block_table = node.inputs[:6]
    _, n_head, d_k = bounds(q.shape)
    n_head_kv, d_v = bounds(v.shape)[1:]
    kind = k.dtype.name
    partial = Workspace(node)
    seen: dict[str, Argument] = {
        "positions": positions,
        "sequences": sequences,
        "lengths": positions,  # not read: every token sees what is up to its own position
        "n_head": n_head,
        "window": int(number(node, "window")),
        "causal": 1,
        "rows": rows(q.shape[:1]),
    }
    chunks: dict[str, Argument] = {
        **seen,
        "q": q,
        "k_cache": k,
        "v_cache": v,
        "block_table": block_table,
        "partial": partial,
        "n_head_kv": n_head_kv,
        "block_size": int(number(node, "block_size")),
        "table_stride": bounds(block_table.shape)[1],
        "scale": number(node, "scale"),
        "softcap": number(node, "softcap"),
        "max_bias": number(node, "max_bias"),
        "q_stride": 4 * n_head * d_k,
    }
    combined: dict[str, Argument] = {
        **seen,
        "partial": partial,
        "sinks": node.inputs[6] if len(node.inputs) > 6 else 0,
        "out": node,
        "out_stride": 4 * n_head * d_v,
    }
    first = KernelRef(
        f"attention_partial-{kind}-{d_k}-{d_v}", _MODULE, "make_attention_partial", (kind, d_k, d_v)
    )
    second = KernelRef(f"attention_combine-{d_v}", _MODULE, "make_attention_combine", (d_v,))
    return [Step(first, chunks, writes=("partial",), split=True), Step(second, combined)]


ATTENTION = Lowering(("attention",), _lower, workspace=_workspace, replicable=True)
