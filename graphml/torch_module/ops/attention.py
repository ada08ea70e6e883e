"""Attention over cells in PyTorch: all tokens of a sequence at once. See `graphml.ir.ops.attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphml.ir.dtype import dtype
from graphml.ir.op import Attributes, integer, number, text
from graphml.ir.ops.attention import alibi_slopes, causal, extras, reach
from graphml.ir.ops.relative import bucket
from graphml.torch_module.ops.index import decoded, rows_at

Bias = Callable[[Tensor], Tensor]
"""Distances of positions from tokens, int64 [n, p] -> what is added to the scores, [head, n, p]."""


def cells_of(positions: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """The cells of positions of a sequence, int64; blocks: its row of the block table."""
    return blocks[positions // block_size].long() * block_size + positions % block_size


def plain_cache(cache: Tensor, attributes: Attributes, stored_as: str) -> Tensor:
    """A cache as plain numbers, of the type that the attribute `stored_as` names."""
    return decoded(cache, dtype(text(attributes, stored_as)))


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of the last dimension, zeros where all are -inf. sinks [..., 1]: one more score with its share."""
    whole = scores if sinks is None else torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
    weights = torch.nan_to_num(whole.softmax(-1), nan=0.0)
    return weights if sinks is None else weights[..., :-1]


def _visible(positions: Tensor, ends: Tensor, n: int, attributes: Attributes) -> Tensor:
    """Which of the first n positions each token sees, bool [tokens, n]; ends: the first behind those."""
    at = torch.arange(n, device=positions.device)
    first = torch.zeros_like(positions)
    window, chunk = integer(attributes, "window"), integer(attributes, "chunk")
    if chunk:
        first = (torch.div(positions, chunk, rounding_mode="floor") * chunk).clamp_min(0)
    elif window:
        first = (positions - reach(attributes)).clamp_min(0)
    return (at >= first[:, None]) & (at < ends[:, None])


def _ends(positions: Tensor, length: int | None, room: int, attributes: Attributes) -> Tensor:
    if length is None:
        return (positions + 1).clamp_max(room)
    ends = torch.full_like(positions, min(room, length))
    if integer(attributes, "window"):
        ends = torch.minimum(ends, positions + reach(attributes) + 1)
    return ends


def attended(inputs: Sequence[Tensor], attributes: Attributes, bias: Bias | None = None) -> Tensor:
    """Softmax over the visible cells of each token; zeros for a token that sees none.

    inputs: q [T, head, d], caches [cell, head_kv, d] of plain numbers, positions, sequences, block table, and
    what `extras` tells apart.
    """
    q, k, v, positions, sequences, table = inputs[:6]
    sinks, lengths = extras(inputs, attributes)
    block, n_group = integer(attributes, "block_size"), k.shape[1]
    room, each = table.shape[1] * block, q.shape[1] // n_group
    scale, softcap = number(attributes, "scale"), number(attributes, "softcap")
    slopes = torch.from_numpy(alibi_slopes(q.shape[1], number(attributes, "max_bias"))).to(q)
    y = q.new_zeros(*q.shape[:2], v.shape[2])
    for sequence in torch.unique(sequences).tolist():
        if not 0 <= sequence < len(table):
            continue
        own = (sequences == sequence).nonzero()[:, 0]
        at = positions[own].long()
        ends = _ends(at, None if lengths is None else int(lengths[sequence]), room, attributes)
        n = int(ends.max()) if len(ends) else 0
        if n <= 0:
            continue
        seen = torch.arange(n, device=q.device)
        cells = cells_of(seen, table[sequence], block)
        keys, values = (rows_at(cache, cells) for cache in (k, v))
        visible = _visible(at, ends, n, attributes)
        plain = bias is None and sinks is None and not softcap and not bool(slopes.any())
        if plain and bool(visible.any(1).all()):
            y = y.index_put((own,), _by_torch(q[own], keys, values, visible, scale))
            continue
        heads = q[own].reshape(len(own), n_group, each, -1)
        scores = torch.einsum("tgjd,pgd->gjtp", heads, keys).reshape(q.shape[1], len(own), n)
        scores = scores * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        distances = seen - at[:, None]
        if bool(slopes.any()):
            scores = scores - slopes[:, None, None] * distances.abs()
        if bias is not None:
            scores = scores + bias(distances)
        scores = scores.masked_fill(~visible, float("-inf"))
        weights = softmax_with_sinks(scores, None if sinks is None else sinks[:, None, None])
        grouped = weights.reshape(n_group, each, len(own), n)
        result = torch.einsum("gjtp,pgd->tgjd", grouped, values).reshape(len(own), *y.shape[1:])
        y = y.index_put((own,), result)
    return y


def _by_torch(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Plain attention by torch's own function, which keeps no scores: q [t, head, d] -> [t, head, d of v]."""
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    y = functional.scaled_dot_product_attention(*heads, attn_mask=visible, scale=scale, enable_gqa=True)
    return y[0].transpose(0, 1)


def _with_plain_caches(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    k, v = plain_cache(inputs[1], attributes, "k_dtype"), plain_cache(inputs[2], attributes, "v_dtype")
    return [inputs[0], k, v, *inputs[3:]]


def _attention(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return attended(_with_plain_caches(inputs, attributes), attributes)


def _relative_attention(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    table = inputs[6]

    def bias(distances: Tensor) -> Tensor:
        far = integer(attributes, "max_distance")
        buckets = bucket(distances.cpu().numpy(), len(table), far, causal(attributes))
        return table[torch.from_numpy(buckets).to(table.device).long()].permute(2, 0, 1)

    plain = {"window": 0, "chunk": 0, "softcap": 0.0, "max_bias": 0.0, **attributes}
    inputs = _with_plain_caches(inputs, attributes)
    return attended([*inputs[:6], *inputs[7:]], plain, bias)


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "attention": _attention,
    "relative_attention": _relative_attention,
}
