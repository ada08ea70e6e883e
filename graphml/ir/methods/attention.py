"""Methods of attention: write keys and values to a cache, and attend to it with queries.

Knows which state belongs to which layer, and which cells to its window; nothing of the rest of a layer.
"""

from __future__ import annotations

from typing import Any

from graphml.errors import GraphError, UsageError
from graphml.ir.argument_kinds import Count, Index, NonNegative
from graphml.ir.arguments import method
from graphml.ir.cache_types import KeptAs
from graphml.ir.cell_groups import CellGroup
from graphml.ir.dtype import F32, DType
from graphml.ir.methods.layout import flatten, heads
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.ops import attention as ops
from graphml.ir.ops import compressed, index, relative, sparse
from graphml.ir.ops.walsh_hadamard import walsh_hadamard
from graphml.ir.shape import Shape, fixed
from graphml.ir.step import StepBuilder, WrittenCache


@method
def attend(
    g: StepBuilder,
    q: Node,
    k: Node | None,
    v: Node | None,
    layer: Index,
    scale: float,
    window: Index = 0,
    softcap: NonNegative = 0.0,
    max_bias: NonNegative = 0.0,
    sinks: Node | None = None,
    causal: bool | None = None,
    chunk: Index = 0,
    selected: Node | None = None,
    selection_block: Count = 1,
) -> Node:
    """Write k and v to the cache of `layer`, attend to it with q: f32 [T, head * d_v].

    q f32 [T, head, d], k [T, head_kv, d], v [T, head_kv, d_v]; head is a multiple of head_kv. v None: the
    values are the keys, stored once. k None: nothing is written, the keys and values are those that attention
    of `layer` wrote before in this graph; then its window may be a shorter one. scale: of the scores, most
    often d ** -0.5.

    causal: no token attends to later ones (None: the architecture's `CAUSAL`); else to all tokens of its
    sequence after this step. window: how many tokens are visible, the token itself the last, 0 for all;
    unless causal, half of them are on either side. chunk: attention within chunks of this size (Llama 4).
    softcap: limit * tanh(scores / limit), 0 for none. max_bias: ALiBi (arXiv:2108.12409), 0 for none. sinks:
    f32 [head], one more score of each head (gpt-oss). selected: from `select`, the visible blocks of
    `selection_block` positions; without window, chunk, softcap and max_bias.

    >>> g.attend(q, k, v, layer=0, scale=16**-0.5)
    %reshape: f32[T<=8, 64] = reshape(%attention)
    """
    causal = g.causal if causal is None else causal
    if k is None and v is not None:
        raise GraphError("[g.attend] wanted v with its k, or neither; got v alone")
    own = g.windows and causal and selected is None and bool(window or chunk)
    group = CellGroup(window, chunk) if own else None
    if k is not None:
        g.kept[layer] = _written(g, g.caches, layer, k, v, group)
    if layer not in g.kept:
        raise GraphError(f"[g.attend] wanted keys and values of layer {layer}, which has kept none yet")
    kept = g.kept[layer]
    if kept.group is not None and not (kept.group == group or 0 < window <= kept.group.window):
        raise GraphError(
            f"[g.attend] wanted the {kept.group.name.replace('_', ' of ')} of layer {layer}, which keeps no "
            f"more; got window {window}, chunk {chunk}"
        )
    k_cache, v_cache = kept.keys, kept.values
    q = _transformed(g, q, kept.blocks[0])
    places = g.positions, g.sequences, g.block_table_of(kept.group)
    extra = () if sinks is None else (sinks,)
    shared: dict[str, Any] = {"scale": scale, "block_size": g.block_size, **_types(k_cache, v_cache)}
    of_all: dict[str, Any] = {"window": window, "chunk": chunk, "softcap": softcap, "max_bias": max_bias}
    if selected is not None:
        unfit = [name for name, value in {**of_all, "causal=False": not causal}.items() if value]
        if unfit:
            raise GraphError(f"[g.attend] wanted selected without {', '.join(unfit)}: it has its own blocks")
        operands = (q, k_cache, v_cache, *places, selected, *extra)
        op, attributes = sparse.selected_attention, dict[str, Any](selection_block=selection_block)
    else:
        ahead = () if causal else (g.lengths,)
        operands = (q, k_cache, v_cache, *places, *extra, *ahead)
        op, attributes = ops.attention, {"causal": causal, **of_all}
    return _attended(g, kept.blocks[1], op, *operands, **shared, **attributes)


@method
def select(
    g: StepBuilder,
    q: Node,
    k: Node,
    layer: Index,
    n: Count,
    selection_block: Count = 1,
    local: Index = 0,
    weights: Node | None = None,
) -> Node:
    """Write k [T, 1, d] to the cache and select the top n blocks of positions for q [T, head, d], i32.

    A block has the score of its highest position; the last `local` ones are always selected. With weights f32
    [T, head] all heads share a selection, [T, 1, n], else each has its own, [T, head, n]; padded with -1. For
    `attend(selected=...)`; see `graphml/ir/ops/sparse.py`.

    >>> g.select(q, g.heads(g.columns(x, 0, 16), 1), layer=0, n=4)
    %selected: i32[T<=8, 4, 4] = select_blocks(%q, %cache_write, %positions, %sequences, %block_table)
    """
    k_cache, block = _kept_index(g, k, layer)
    q = _transformed(g, q, block)
    operands = (q, k_cache, g.positions, g.sequences, g.block_table, *(() if weights is None else (weights,)))
    return g.record(
        sparse.select_blocks,
        *operands,
        name="selected",
        n=n,
        selection_block=selection_block,
        local=local,
        block_size=g.block_size,
        k_dtype=k_cache.dtype.name,
    )


@method
def compress(
    g: StepBuilder,
    x: Node,
    scores: Node,
    bias: Node,
    layer: Index,
    overlaps: bool = False,
    what: str = "groups",
) -> Node:
    """Means of x f32 [T, d] over groups of `ratio` positions, f32 [T, d], by DeepSeek-V4.

    bias f32 [ratio, d] is added to scores f32 [T, d] by place; the softmax of a group's scores weighs each
    column. overlaps: d is twice the result's width; the first half counts for the next group, the second for
    a token's own. Zeros but where a group ends. `what` distinguishes the groups of a layer. For
    `select_groups` and `attend_compressed`.

    >>> g.compress(x, x, g.weight("places", F32, (4, 64)), layer=0, overlaps=True).type
    f32[T<=8, 32]
    """
    ratio = fixed(bias.shape[0])
    group = CellGroup(ratio * (1 + overlaps)) if g.windows else None
    kept = [
        _write(g, f"{g.caches}.{layer}.{what}_{name}", heads(g, value, 1), F32, group)
        for name, value in (("rows", x), ("scores", scores))
    ]
    return g.record(
        compressed.compress_rows,
        *(*kept, bias, g.positions, g.sequences, g.block_table_of(group)),
        ratio=ratio,
        overlaps=int(overlaps),
        block_size=g.block_size,
    )


@method
def select_groups(
    g: StepBuilder, q: Node, k: Node, weights: Node, layer: Index, n: Count, ratio: Count
) -> Node:
    """Write k [T, 1, d], from `compress`, and select the top n groups for q [T, head, d]: i32 [T, n].

    weights f32 [T, head] of the heads' scores above 0. Padded with -1.

    >>> g.select_groups(q, g.heads(g.columns(x, 0, 16), 1), g.columns(x, 0, 4), layer=0, n=2, ratio=4).type
    i32[T<=8, 2]
    """
    k_cache, block = _kept_index(g, k, layer)
    return g.record(
        compressed.select_compressed,
        *(_transformed(g, q, block), k_cache, g.positions, g.sequences, g.block_table, weights),
        n=n,
        ratio=ratio,
        block_size=g.block_size,
        k_dtype=k_cache.dtype.name,
    )


@method
def attend_compressed(
    g: StepBuilder,
    q: Node,
    k: Node,
    rows: Node,
    layer: Index,
    scale: float,
    window: Count,
    ratio: Count,
    sinks: Node,
    selected: Node | None = None,
) -> Node:
    """Attend with q [T, head, d] to the last `window` keys and to groups of `ratio` tokens: [T, head * d].

    k [T, 1, d] of the tokens and rows [T, 1, d], from `compress`, of the groups; the values are the keys.
    sinks f32 [head], one more score of each head. selected: from `select_groups`, the visible groups; None:
    all whose tokens are there.

    >>> k1, sinks = g.heads(g.columns(x, 0, 16), 1), g.weight("sinks", F32, (4,))
    >>> g.attend_compressed(q, k1, k1, layer=0, scale=0.25, window=8, ratio=4, sinks=sinks)
    %reshape_1: f32[T<=8, 64] = reshape(%compressed_attention)
    """
    kept_as = g.cache_types.of(layer)
    kind, (block, _) = kept_as.dtypes[0], _blocks(kept_as, k, None)
    group = CellGroup(window) if g.windows else None
    keys = _write(g, f"{g.caches}.{layer}.k", k, kind, group, block)
    kept = _write(g, f"{g.caches}.{layer}.groups", rows, kind, block=block)
    places = g.positions, g.sequences, g.block_table_of(group), g.block_table
    chosen = () if selected is None else (selected,)
    return _attended(
        g,
        block,
        compressed.compressed_attention,
        *(_transformed(g, q, block), keys, kept, *places, sinks, *chosen),
        scale=scale,
        window=window,
        ratio=ratio,
        block_size=g.block_size,
        k_dtype=kind.name,
    )


@method
def attend_relative(
    g: StepBuilder, q: Node, k: Node, v: Node, layer: Index, bias: Node, scale: float = 1.0
) -> Node:
    """Like `attend`, with a bias f32 [buckets, head] added to scores by distance (T5, arXiv:1910.10683).

    >>> g.attend_relative(q, k, v, layer=0, bias=g.weight("distances", F32, (32, 4)))
    %reshape: f32[T<=8, 64] = reshape(%relative_attention)
    """
    kept = _written(g, g.caches, layer, k, v)
    k_cache, v_cache = kept.keys, kept.values
    q = _transformed(g, q, kept.blocks[0])
    ahead = () if g.causal else (g.lengths,)
    return _attended(
        g,
        kept.blocks[1],
        relative.relative_attention,
        *(q, k_cache, v_cache, g.positions, g.sequences, g.block_table, bias, *ahead),
        scale=scale,
        block_size=g.block_size,
        causal=g.causal,
        **_types(k_cache, v_cache),
    )


@method
def keep_source(g: StepBuilder, k: Node, v: Node, layer: Index) -> None:
    """Write k and v [T, head_kv, d] of a source text, for cross-attention in `layer`; see `encode`.

    >>> g.keep_source(k, v, layer=0)
    """
    _written(g, "source", layer, k, v)


@method
def attend_source(g: StepBuilder, q: Node, layer: Index, n_head_kv: Count, scale: float) -> Node:
    """Attend with q [T, head, d] to the whole source text of its sequence: f32 [T, head * d].

    The keys and values [n_head_kv, d] are those that the encoder's graph wrote by `keep_source`. The result
    is zeros for a sequence without a source text.

    >>> g.attend_source(q, layer=0, n_head_kv=2, scale=16**-0.5)
    %reshape: f32[T<=8, 64] = reshape(%cross_attention)
    """
    shape = g.n_cells, n_head_kv, q.shape[-1]
    kept_as = g.cache_types.of(layer)
    (k_kind, v_kind), (of_keys, of_values) = kept_as.dtypes, _blocks(kept_as, q, q)
    k_cache = _cache(g, f"source.{layer}.k", shape, k_kind)
    v_cache = _cache(g, f"source.{layer}.v", shape, v_kind)
    q = _transformed(g, q, of_keys)
    return _attended(
        g,
        of_values,
        ops.attention,
        *(q, k_cache, v_cache),
        *(g.positions, g.sequences, g.source_table, g.source_lengths),
        name="cross_attention",
        scale=scale,
        block_size=g.block_size,
        causal=False,
        **_types(k_cache, v_cache),
    )


def _types(k_cache: Node, v_cache: Node) -> dict[str, Any]:
    """What attention is told of its caches."""
    return {"k_dtype": k_cache.dtype.name, "v_dtype": v_cache.dtype.name}


def _blocks(kept_as: KeptAs, k: Node, v: Node | None) -> tuple[int, int]:
    """The sizes of blocks by which keys and values of these heads are transformed; 0: they are not.

    As in llama.cpp (`src/llama-kv-cache.cpp`): the largest for keys, at most 64 for values, since small
    blocks lose less there. v None: the values are the keys.
    """

    def block(x: Node, is_transformed: bool) -> int:
        width = fixed(x.shape[-1])
        return width & -width if is_transformed else 0

    of_keys = block(k, kept_as.transformed[0])
    of_values = of_keys if v is None else min(block(v, kept_as.transformed[1]), 64)
    return of_keys, of_values


def _transformed(g: StepBuilder, x: Node, block: int) -> Node:
    return g.record(walsh_hadamard, x, block=block) if block else x


def _attended(
    g: StepBuilder, block: int, op: Op, *operands: Node, name: str | None = None, **attributes: Any
) -> Node:
    """What attention gives, flat. Where values are kept as transforms, the inverse has the op's name."""
    name = name or op.name
    if not block:
        return flatten(g, g.record(op, *operands, name=name, **attributes))
    y = g.record(op, *operands, name=f"{name}_transformed", **attributes)
    return flatten(g, g.record(walsh_hadamard, y, name=name, block=block))


def _kept_index(g: StepBuilder, k: Node, layer: int) -> tuple[Node, int]:
    """The cache of the keys that select for a layer, with k written, and the blocks of their transforms."""
    kept_as = g.cache_types.of(layer)
    block, _ = _blocks(kept_as, k, None)
    return _write(g, f"{g.caches}.{layer}.index", k, kept_as.dtypes[0], block=block), block


def _written(
    g: StepBuilder, caches: str, layer: int, k: Node, v: Node | None, group: CellGroup | None = None
) -> WrittenCache:
    """The keys and values of a layer in its caches, as `kv` says for it; v None: the values are the keys."""
    kept_as = g.cache_types.of(layer)
    (k_kind, v_kind), blocks = kept_as.dtypes, _blocks(kept_as, k, v)
    keys = _write(g, f"{caches}.{layer}.k", k, k_kind, group, blocks[0])
    values = keys if v is None else _write(g, f"{caches}.{layer}.v", v, v_kind, group, blocks[1])
    return WrittenCache(keys, values, group, blocks)


def _write(
    g: StepBuilder, name: str, x: Node, kind: DType, group: CellGroup | None = None, block: int = 0
) -> Node:
    state = _cache(g, name, (g.n_cells_of(group), *x.shape[1:]), kind)
    # The runtime gives each token of a step a cell of its own.
    return g.record(
        index.set_rows,
        *(state, _transformed(g, x, block), g.cells_of(group)),
        name="cache_write",
        to_dtype=kind.name,
        distinct=True,
    )


def _cache(g: StepBuilder, name: str, shape: Shape, kind: DType) -> Node:
    if fixed(shape[-1]) % kind.block_elements:
        raise UsageError(
            f"kv: {kind.name} keeps blocks of {kind.block_elements} elements; {name} has heads of "
            f"{shape[-1]}: choose f16, bf16 or f32"
        )
    return g.state(name, kind, shape)
