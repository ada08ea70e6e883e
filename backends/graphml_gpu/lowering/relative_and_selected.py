"""Attention with a bias for each bucket of distances, and to chosen blocks alone."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from graphml.ir.node import Node
from graphml.ir.op import integer, number
from graphml.ir.ops.attention import causal
from graphml.ir.ops.relative import bucket
from graphml.ir.shape import bounds, max_elements
from graphml_gpu.dispatch import (
    NOTHING,
    Argument,
    DeviceView,
    Dims,
    Dispatch,
    GpuLowering,
    GpuWorkspace,
    Groups,
    Scalar,
    rows,
)
from graphml_gpu.kernels.attention.decode import TEAM
from graphml_gpu.kernels.attention.relative_and_selected import (
    RELATIVE_ATTENTION,
    SELECTED_ATTENTION,
    unique_blocks,
)
from graphml_gpu.language import ValueType
from graphml_gpu.lowering.attention import (
    GROUP,
    QUERY_BYTES,
    decode_turns,
    form,
    refuses_caches,
    shared_out,
    table_sizes,
)
from graphml_gpu.lowering.groups import for_elements


def _sizes(
    node: Node, context: DeviceView
) -> tuple[tuple[ValueType, ValueType], dict[str, Any], dict[str, Scalar]]:
    """How caches are bound, and constants and numbers that both kinds have."""
    elements, sizes = form(node)
    block = integer(node.attributes, "block_size")
    constants = {**sizes, "BLOCK": block, **shared_out(context.features)}
    scalars: dict[str, Scalar] = {
        **table_sizes(node.inputs[5], block),
        "table_stride": bounds(node.inputs[5].shape)[1],
        "n_cells": rows(node.inputs[1].shape[:1]),
        "scale": number(node.attributes, "scale"),
        "planes": max(1, GROUP // -(-sizes["DV"] // 4)),
    }
    return elements, constants, scalars


def _relative(node: Node, context: DeviceView) -> list[Dispatch]:
    q, k, v, positions, sequences, table, bias, *lengths = node.inputs
    elements, constants, scalars = _sizes(node, context)
    n_buckets, most = bounds(bias.shape)[0], integer(node.attributes, "max_distance")
    is_causal, tokens = causal(node.attributes), rows(node.shape[:1])
    back = bucket(-np.arange(most + 1), n_buckets, most, is_causal)
    constants |= {
        "BUCKETS": tuple(map(int, back)), "AHEAD": 0 if is_causal else n_buckets // 2, "CAUSAL": is_causal
    }  # fmt: skip
    buffers: dict[str, Argument] = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "block_table": table,
        "lengths": lengths[0] if lengths else NOTHING, "bias": bias, "out": node,
    }  # fmt: skip

    def grid(dims: Dims) -> Groups:
        return constants["N_HEAD"], tokens(dims), 1

    longest = context.largest(lengths[0] if lengths else positions)

    def turns(dims: Dims) -> int:
        room = bounds(table.shape)[1] * integer(node.attributes, "block_size")
        seen = room if longest is None else min(room, longest(dims))
        return -(-seen // int(constants["TILE"])) * (decode_turns(constants) + 1)

    return [Dispatch(RELATIVE_ATTENTION[elements], constants, buffers, scalars, grid, turns=turns)]


def _heads(constants: dict[str, Any], n_list: int) -> int:
    """Heads that a workgroup takes, of those that share a list and a kv head."""
    n_head = constants["N_HEAD"]
    sharing = gcd(n_head // constants["N_HEAD_KV"], n_head // n_list)
    fours = -(-max(constants["D"], constants["DV"]) // 4)
    most = max(1, min(sharing, GROUP // TEAM, QUERY_BYTES // (fours * 16)))
    return max(heads for heads in range(1, most + 1) if sharing % heads == 0)


def _selected(node: Node, context: DeviceView) -> list[Dispatch]:
    q, k, v, positions, sequences, table, selected, *sinks = node.inputs
    elements, constants, scalars = _sizes(node, context)
    _, n_list, n = bounds(selected.shape)
    heads, count, tokens = _heads(constants, n_list), rows(selected.shape), rows(node.shape[:1])
    constants |= {
        "N_LIST": n_list, "SIZE": integer(node.attributes, "selection_block"), "HEADS": heads,
        "SINKS": bool(sinks),
    }  # fmt: skip
    buffers: dict[str, Argument] = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "block_table": table,
        "blocks": GpuWorkspace(node), "sinks": sinks[0] if sinks else NOTHING, "out": node,
    }  # fmt: skip

    def grid(dims: Dims) -> Groups:
        return constants["N_HEAD"] // heads, tokens(dims), 1

    turns = -(-n * constants["SIZE"] // constants["TILE"]) * (decode_turns(constants) + 2)
    sizes, of_elements = for_elements(count)
    unique: dict[str, Argument] = {"selected": selected, "out": GpuWorkspace(node)}
    numbers: dict[str, Scalar] = {"count": count, "n": n}
    return [
        Dispatch(unique_blocks, sizes, unique, numbers, of_elements),
        Dispatch(SELECTED_ATTENTION[elements], constants, buffers, scalars | {"n": n}, grid, turns=turns),
    ]


RELATIVE = GpuLowering(("relative_attention",), _relative, refuses=refuses_caches)
SELECTED = GpuLowering(
    ("selected_attention",),
    _selected,
    refuses=refuses_caches,
    workspace=lambda node: max_elements(node.inputs[6].shape) * 4,
)
