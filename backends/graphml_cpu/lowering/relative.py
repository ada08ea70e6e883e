"""Attention with a bias for each bucket of distances."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.ir.node import Node
from graphml.ir.op import Array, integer, number
from graphml.ir.ops.attention import causal
from graphml.ir.ops.relative import bucket
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.attention import cache_form, refuses_caches, table_sizes
from graphml_cpu.lowering.step import CpuLowering, HostConstant, KernelCall, one_step, rows


def _buckets(node: Node) -> HostConstant:
    """Where the row of each distance's bucket begins, for all distances up to the farthest on both sides."""
    far, (n_buckets, n_head) = integer(node.attributes, "max_distance"), bounds(node.inputs[6].shape)

    def made(weights: Mapping[str, Array]) -> Array:
        distances = np.arange(-far, far + 1)
        numbers = bucket(distances, n_buckets, far, causal(node.attributes))
        return np.asarray(numbers * n_head, np.int32)

    return HostConstant(made)


def _lower(node: Node, threads: int) -> list[KernelCall]:
    q, k, v, positions, sequences, table, bias = node.inputs[:7]
    named, form = cache_form(node)
    ref = KernelRef(
        f"relative_attention-{named}",
        "graphml_cpu.kernels.attention.relative",
        "make_relative_attention",
        form,
    )
    return one_step(
        ref, q=q, k_cache=k, v_cache=v, positions=positions, sequences=sequences,
        lengths=0 if causal(node.attributes) else node.inputs[7], block_table=table, bias=bias,
        buckets=_buckets(node), out=node, n_head=bounds(q.shape)[1], n_head_kv=bounds(k.shape)[1],
        block_size=integer(node.attributes, "block_size"), table_stride=bounds(table.shape)[1],
        causal=int(causal(node.attributes)), **table_sizes(node), n_cells=rows(k.shape[:1]),
        far=integer(node.attributes, "max_distance"), scale=number(node.attributes, "scale"),
        rows=rows(node.shape[:1]),
    )  # fmt: skip


RELATIVE_ATTENTION = CpuLowering(("relative_attention",), _lower, refuses=refuses_caches)
