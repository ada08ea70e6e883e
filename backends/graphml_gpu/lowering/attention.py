"""Paged attention: tiles of tokens for many, splits of the context for few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphml.ir.node import Node
from graphml.ir.op import integer, number
from graphml.ir.ops.attention import causal, extras, reach
from graphml.ir.shape import bounds
from graphml.ir.state_order import state_of
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
from graphml_gpu.kernels.attention.cache_elements import CACHE_TYPES
from graphml_gpu.kernels.attention.decode import ATTENTION, TEAM
from graphml_gpu.kernels.attention.decode_teams import ATTENTION_TEAMS
from graphml_gpu.kernels.attention.prefill import ATTENTION_TILES, TILE_POSITIONS, tile_turns
from graphml_gpu.kernels.attention.prefill_registers import ATTENTION_REGISTERS, QUAD
from graphml_gpu.kernels.attention.split_records import MOST_SPLITS, RECORD_HEAD, combine_attention
from graphml_gpu.language import Features, Kernel, ValueType, f32, f32x4, u32, u32x2, u32x4
from graphml_gpu.lowering.attention_teams import teams, tiles

GROUP, _TILE_GROUP = 128, 64
_FEW_TOKENS = 4
"""Up to this many each has workgroups of its own, even where they are of one sequence."""
QUERY_BYTES = 6144
"""Shared memory that a workgroup's queries may take, and its values; any device has 16 KB."""
_GROUPS, _GROUPS_OF_TEAMS = 256, 1024
"""Workgroups that are enough for a device; splits of the context make up for few tokens and heads."""
_LEAST = 128
"""Positions that a split has at least."""
_UNSPLIT, _UNSPLIT_BY_TEAMS = 256, 512
"""Positions that are not split: a second kernel would cost more than it saves."""
_LANES = 8
"""Invocations that share a key, where they can add up without shared memory."""


def _heads(node: Node) -> int:
    """Heads of one kv head that a workgroup takes."""
    _, n_head, d = bounds(node.inputs[0].shape)
    _, kv_heads, d_v = bounds(node.inputs[2].shape)
    each = n_head // kv_heads
    most = max(1, min(each, GROUP // TEAM, QUERY_BYTES // (-(-max(d, d_v) // 4) * 16)))
    return -(-each // -(-each // most))


def _chunks(node: Node) -> int:
    each = bounds(node.shape)[1] // bounds(node.inputs[2].shape)[1]
    return -(-each // _heads(node))


def _most_seen(node: Node, context: int) -> int:
    """Positions that a token sees at most, of so many."""
    if integer(node.attributes, "chunk"):
        return min(context, integer(node.attributes, "chunk"))
    if not integer(node.attributes, "window"):
        return context
    sides = 1 if causal(node.attributes) else 2
    return min(context, sides * reach(node.attributes) + 1)


def _window(node: Node) -> int:
    """The kernels' number for the window or the chunk."""
    return integer(node.attributes, "window") or integer(node.attributes, "chunk")


def _optional(node: Node) -> dict[str, Argument]:
    """Sinks and lengths, where attention has them."""
    sinks, lengths = extras(node.inputs, node.attributes)
    return {"sinks": sinks or NOTHING, "lengths": lengths or NOTHING}


def _splits(node: Node, groups: int = _GROUPS_OF_TEAMS) -> int:
    """Shares of the context that have a workgroup each, where so many workgroups are enough."""
    tokens = bounds(node.shape)[0]
    kv_heads, blocks = bounds(node.inputs[2].shape)[1], bounds(node.inputs[5].shape)[1]
    longest = _most_seen(node, blocks * integer(node.attributes, "block_size"))
    wanted = groups // (tokens * kv_heads * _chunks(node))
    return max(1, min(wanted, MOST_SPLITS, longest // _LEAST))


def _workspace(node: Node) -> int:
    tokens, n_head, d_v = bounds(node.shape)
    if _tiled(node) or not _leaves_records(node, _splits(node)):
        return 0
    return tokens * n_head * _splits(node) * (RECORD_HEAD + d_v) * 4


def _leaves_records(node: Node, splits: int) -> bool:
    """Whether workgroups may leave records for `combine_attention`, which alone knows of sinks."""
    return splits > 1 or _optional(node)["sinks"] is not NOTHING


def bound_as(node: Node) -> tuple[ValueType, Any]:
    """The element type that a cache is bound as, and what loads four of a row."""
    cache, even = CACHE_TYPES[node.dtype.name], bounds(node.shape)[2] % 4 == 0
    vectors: dict[str, Any] = {"f32x4": f32x4, "u32x2": u32x2, "u32": u32}
    plain: Any = f32 if cache.vector == "f32x4" else u32
    return (vectors[cache.vector], cache.load) if even else (plain, cache.uneven)


def shared_out(features: Features) -> dict[str, int]:
    """How a workgroup shares a tile: invocations of a key, positions of the tile, all invocations."""
    lanes = _LANES if features.subgroups and features.subgroup_min >= _LANES else 1
    return {"LANES": lanes, "TILE": max(64, GROUP // lanes), "GROUP": GROUP}


def _fetched_as(node: Node) -> tuple[ValueType, Any]:
    """As `bound_as`, for kernels that fetch: eight halves at once where rows are a multiple of these."""
    cache, wide = CACHE_TYPES[node.dtype.name], bounds(node.shape)[2] % 8 == 0
    vector: Any = u32x4
    return (vector, cache.unpack) if wide and cache.unpack is not None else bound_as(node)


def form(
    node: Node, bind: Callable[[Node], tuple[ValueType, Any]] = bound_as
) -> tuple[tuple[ValueType, ValueType], dict[str, Any]]:
    """How keys and values are bound, and what a kernel must know of them."""
    k, v = node.inputs[1:3]
    (_, kv_heads, d), (_, _, d_v) = bounds(k.shape), bounds(v.shape)
    (k_element, load_k), (v_element, load_v) = bind(k), bind(v)
    sizes = {"D": d, "DV": d_v, "N_HEAD": bounds(node.shape)[1], "N_HEAD_KV": kv_heads}
    return (k_element, v_element), sizes | {"LOAD_K": load_k, "LOAD_V": load_v}


def _kinds(node: Node) -> dict[str, Any]:
    """Which of the op's parts the kernel has."""
    return {
        "BLOCK": integer(node.attributes, "block_size"),
        "WINDOW": integer(node.attributes, "window") > 0,
        "CHUNK": integer(node.attributes, "chunk") > 0,
        "SOFTCAP": number(node.attributes, "softcap") != 0.0,
        "ALIBI": number(node.attributes, "max_bias") > 0.0,
        "SINKS": _optional(node)["sinks"] is not NOTHING,
        "CAUSAL": causal(node.attributes),
    }


def table_sizes(table: Node, block_size: int) -> dict[str, Scalar]:
    """The rows of a block table, and the positions that each has cells for."""
    n_sequences, n_blocks = table.shape
    return {"n_sequences": rows((n_sequences,)), "room": rows((n_blocks, block_size))}


def _scalars(node: Node) -> dict[str, Scalar]:
    n_head = bounds(node.shape)[1]
    lower = 1 << (n_head.bit_length() - 1)
    return {
        **table_sizes(node.inputs[5], integer(node.attributes, "block_size")),
        "table_stride": bounds(node.inputs[5].shape)[1],
        "n_cells": rows(node.inputs[1].shape[:1]),
        "window": _window(node),
        "scale": number(node.attributes, "scale"),
        "softcap": number(node.attributes, "softcap"),
        "bias_step": number(node.attributes, "max_bias") / lower,
        "lower": lower,
    }


def _tiled(node: Node) -> bool:
    """Whether so many tokens may come that they should share what they read."""
    tokens, sequences = bounds(node.shape)[0], bounds(node.inputs[5].shape)[0]
    return tokens > max(sequences, _FEW_TOKENS)


def _lower_tiles(node: Node, context: DeviceView) -> list[Dispatch]:
    q, k, v, positions, sequences, table = node.inputs[:6]
    tokens = rows(node.shape[:1])
    buffers: dict[str, Argument] = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table, "out": node,
        **_optional(node),
    }  # fmt: skip
    scalars: dict[str, Scalar] = {**_scalars(node), "tokens": tokens}
    shares = tiles(context, bounds(k.shape)[2], bounds(v.shape)[2])
    if shares is not None:
        elements, sizes = form(node, _fetched_as)
        per_group = shares["GROUP"] // shares["ACROSS"] * QUAD

        def heads_first(dims: Dims) -> Groups:
            return bounds(node.shape)[1], -(-tokens(dims) // per_group), 1

        constants = {**sizes, **_kinds(node), **shares}  # never on a processor, whose drivers end loops
        return [Dispatch(ATTENTION_REGISTERS[elements], constants, buffers, scalars, heads_first)]
    elements, sizes = form(node)
    fours = -(-max(bounds(k.shape)[2], bounds(v.shape)[2]) // 4)
    tile = 16 if fours <= 32 else 8 if fours <= 64 else 4
    each = 4 if tile == 4 or fours * tile // 4 <= _TILE_GROUP else 8
    constants = {**sizes, **_kinds(node), "ROWS": tile, "EACH": each, "GROUP": _TILE_GROUP}

    def grid(dims: Dims) -> Groups:
        return -(-tokens(dims) // tile), bounds(node.shape)[1], 1

    scalars["fours"] = -(-bounds(k.shape)[2] // 4)
    longest = context.largest(extras(node.inputs, node.attributes)[1] or positions)

    def turns(dims: Dims) -> int:
        """Of a tile whose tokens are of one sequence."""
        room = bounds(table.shape)[1] * integer(node.attributes, "block_size")
        seen = _most_seen(node, room if longest is None else min(room, longest(dims)))
        return -(-seen // TILE_POSITIONS) * tile_turns(bounds(k.shape)[2], tile, _TILE_GROUP)

    return [Dispatch(ATTENTION_TILES[elements], constants, buffers, scalars, grid, turns=turns)]


def decode_turns(sizes: Mapping[str, int]) -> int:
    """Turns of loops of a tile of positions, see `kernels.attention.decode`."""
    tile, lanes, group = sizes["TILE"], sizes["LANES"], sizes["GROUP"]
    scores = -(-tile * lanes // group) * (-(-sizes["D"] // (4 * lanes)) + 1)
    values = -(-tile // max(1, group // -(-sizes["DV"] // 4)))
    return scores + 2 * (tile // TEAM) + TEAM + values + 3


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    if _tiled(node):
        return _lower_tiles(node, context)
    d, d_v = (bounds(cache.shape)[2] for cache in node.inputs[1:3])
    shares = teams(context, _heads(node), d, d_v)
    if shares is not None:
        elements, sizes = form(node, _fetched_as)
        return _lower_splits(node, context, ATTENTION_TEAMS[elements], {**sizes, **shares}, {})
    elements, sizes = form(node)
    planes = max(1, GROUP // -(-d_v // 4))
    constants = {**sizes, **shared_out(context.features)}
    return _lower_splits(node, context, ATTENTION[elements], constants, {"planes": planes})


def _lower_splits(
    node: Node, context: DeviceView, kernel: Kernel, sizes: dict[str, Any], numbers: dict[str, Scalar]
) -> list[Dispatch]:
    """A kernel for few tokens, a workgroup a share of the context, and what puts the shares together."""
    q, k, v, positions, sequences, table = node.inputs[:6]
    more = _optional(node)
    n_head, kv_heads = bounds(node.shape)[1], bounds(v.shape)[1]
    tokens, groups = rows(node.shape[:1]), kv_heads * _chunks(node)
    by_teams = "AHEAD" in sizes
    most, window = _splits(node, _GROUPS_OF_TEAMS if by_teams else _GROUPS), _window(node)
    unsplit = _UNSPLIT_BY_TEAMS if by_teams else _UNSPLIT
    lengths = extras(node.inputs, node.attributes)[1]
    leaves = _leaves_records(node, most)
    kinds = {**_kinds(node), "LEAST": _LEAST}
    constants = {**sizes, **kinds, "HEADS": _heads(node), "RECORDS": leaves}
    longest = context.largest(lengths or positions)

    def splits(dims: Dims) -> int:
        """As many as the longest of the step's contexts fills; one where putting them together costs more."""
        if most == 1 or longest is None:
            return most
        seen = _most_seen(node, longest(dims))
        return min(most, seen // _LEAST) if seen > unsplit else 1

    def grid(dims: Dims) -> Groups:
        return groups, tokens(dims), splits(dims)

    records: Argument = GpuWorkspace(node) if leaves else NOTHING
    buffers: dict[str, Argument] = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "lengths": more["lengths"],
        "table": table, "records": records, "out": node,
    }  # fmt: skip
    scalars: dict[str, Scalar] = {**_scalars(node), "splits": splits, **numbers}

    def turns(dims: Dims) -> int:
        room = bounds(table.shape)[1] * integer(node.attributes, "block_size")
        seen = _most_seen(node, room if longest is None else min(room, longest(dims)))
        return -(-max(-(-seen // splits(dims)), _LEAST) // int(sizes["TILE"])) * decode_turns(sizes)

    first = Dispatch(kernel, constants, buffers, scalars, grid, turns=0 if by_teams else turns)
    if records is NOTHING:
        return [first]

    def second_grid(dims: Dims) -> Groups:
        return n_head if kinds["SINKS"] or splits(dims) > 1 else 0, tokens(dims), 1

    taken = {"DV", "N_HEAD", "LEAST", "WINDOW", "CHUNK", "SINKS", "CAUSAL"}
    second = Dispatch(
        combine_attention,
        {name: value for name, value in constants.items() if name in taken},
        {"records": records, "positions": positions, "sequences": sequences, "out": node, **more},
        {**table_sizes(table, integer(node.attributes, "block_size")), "window": window, "splits": splits},
        second_grid,
    )
    return [first, second]


def refuses_caches(node: Node) -> str | None:
    """Why no kernel reads the caches of a node of attention, its second and third operand."""
    return refuses_cache(node.inputs[1]) or refuses_cache(node.inputs[2])


def refuses_cache(cache: Node) -> str | None:
    """Why no kernel reads a cache: states alone have a row of zeros, for cells that there are not."""
    kind, width = cache.dtype, bounds(cache.shape)[2]
    if kind.name not in CACHE_TYPES:
        return f"no kernel reads a cache of {kind.name}"
    if width % kind.block_elements:
        return f"{kind.name} comes in blocks of {kind.block_elements}; got {cache.type}"
    return None if state_of(cache) is not None else f"{cache.name} is no state"


ATTENTION_OP = GpuLowering(("attention",), _lower, refuses=refuses_caches, workspace=_workspace)
