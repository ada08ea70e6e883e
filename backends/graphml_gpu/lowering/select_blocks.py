"""The blocks of positions with the highest scores by an index, for each token."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import (
    MOST_GROUPS,
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
from graphml_gpu.kernels.attention.select_blocks import SCORE_BLOCKS, top_k_blocks
from graphml_gpu.lowering.attention import bound_as, refuses_cache, table_sizes
from graphml_gpu.node_support import aligned

_GROUP, _RANKING_GROUP = 64, 256
_MOST_BYTES = 1 << 25
"""Room for the scores of some tokens, unless one takes more; those of all may be more than the model."""


def _most(node: Node) -> int:
    """Blocks that a token may see."""
    n_blocks = bounds(node.inputs[4].shape)[1]
    return -(
        -n_blocks * integer(node.attributes, "block_size") // integer(node.attributes, "selection_block")
    )


def _tokens_of_chunk(node: Node) -> int:
    """How many tokens are made together."""
    tokens, lists, _ = bounds(node.shape)
    return max(1, min(tokens, _MOST_BYTES // (lists * _most(node) * 4), MOST_GROUPS // lists))


def _key_bytes(node: Node) -> int:
    return aligned(_tokens_of_chunk(node) * bounds(node.shape)[1] * _most(node) * 4)


def _workspace(node: Node) -> int:
    """The keys, and those found with their numbers."""
    return 3 * _key_bytes(node)


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    """Chunk by chunk; those beyond the tokens of a step are left out."""
    begins = range(0, bounds(node.shape)[0], _tokens_of_chunk(node))
    return [dispatch for begin in begins for dispatch in _chunk(node, begin, context)]


def _chunk(node: Node, begin: int, context: DeviceView) -> list[Dispatch]:
    q, k, positions, sequences, table, *weights = node.inputs
    _, n_head, d = bounds(q.shape)
    _, lists, n = bounds(node.shape)
    element, load = bound_as(k)
    block, size = integer(node.attributes, "block_size"), integer(node.attributes, "selection_block")
    most, tokens, longest = _most(node), rows(q.shape[:1]), context.largest(positions)
    keys, selected = GpuWorkspace(node), GpuWorkspace(node, _key_bytes(node))

    def tokens_here(dims: Dims) -> int:
        return max(0, min(tokens(dims) - begin, _tokens_of_chunk(node)))

    def grid(dims: Dims) -> Groups:
        seen = most * size if longest is None else min(most * size, longest(dims))
        return -(-seen // (size * _GROUP)), tokens_here(dims), lists

    def rows_here(dims: Dims) -> Groups:
        return tokens_here(dims) * lists, 1, 1

    scored: dict[str, Argument] = {
        "q": q, "k": k, "positions": positions, "sequences": sequences, "block_table": table,
        "weights": weights[0] if weights else NOTHING, "keys": keys,
    }  # fmt: skip
    constants = {
        "D": d, "N_HEAD": n_head, "BLOCK": block, "SIZE": size, "WEIGHTED": bool(weights),
        "LOCAL": integer(node.attributes, "local"), "LOAD": load, "GROUP": _GROUP,
    }  # fmt: skip
    limits = table_sizes(table, block)
    strides: dict[str, Scalar] = {
        **limits, "table_stride": bounds(table.shape)[1], "n_cells": rows(k.shape[:1]), "most": most,
        "begin": begin,
    }  # fmt: skip
    chosen: dict[str, Argument] = {
        "keys": keys, "positions": positions, "sequences": sequences, "found": selected, "out": node
    }  # fmt: skip
    scalars: dict[str, Scalar] = {
        **limits, "n": n, "most": most, "bytes_of_key": 4, "begin": begin * lists
    }  # fmt: skip
    of_a_block = size * (n_head if weights else 1) * (-(-d // 4) + 1)
    ranking = n * -(-n // _RANKING_GROUP) + 12 * -(-most // _RANKING_GROUP)
    return [
        Dispatch(SCORE_BLOCKS[element], constants, scored, strides, grid, turns=of_a_block),
        Dispatch(top_k_blocks, {"LISTS": lists, "SIZE": size}, chosen, scalars, rows_here, turns=ranking),
    ]


SELECT = GpuLowering(
    ("select_blocks",), _lower, refuses=lambda node: refuses_cache(node.inputs[1]), workspace=_workspace
)
