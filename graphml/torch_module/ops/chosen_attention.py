"""Attention to chosen blocks and compressed groups in PyTorch, token by token as `ir.ops` has it in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphml.ir.op import Attributes, integer, number
from graphml.torch_module.ops.attention import cells_of, plain_cache, softmax_with_sinks
from graphml.torch_module.ops.index import rows_at


def _count_seen(position: int, sequence: int, table: Tensor, attributes: Attributes) -> int:
    """How many positions a token sees, from the first on."""
    room = table.shape[1] * integer(attributes, "block_size")
    return max(0, min(position + 1, room)) if 0 <= sequence < len(table) else 0


def _first_of(scores: Tensor, n: int) -> Tensor:
    """The n largest of the last dimension, of equals the first."""
    return torch.sort(-scores, dim=-1, stable=True).indices[..., :n]


def _select_blocks(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    q, k, positions, sequences, table, *weights = inputs
    k = plain_cache(k, attributes, "k_dtype")
    n, size, local = (integer(attributes, name) for name in ("n", "selection_block", "local"))
    y = torch.full((len(q), 1 if weights else q.shape[1], n), -1, dtype=torch.int32, device=q.device)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = _count_seen(position, sequence, table, attributes)
        if not n_seen:
            continue
        seen = torch.arange(n_seen, device=q.device)
        keys = rows_at(k[:, 0], cells_of(seen, table[sequence], integer(attributes, "block_size")))
        scores = q[t] @ keys.T
        if weights:
            scores = weights[0][t][None] @ scores.clamp_min(0)
        blocks = torch.nn.functional.pad(scores, (0, -n_seen % size), value=float("-inf"))
        highest = blocks.reshape(len(scores), -1, size).amax(-1)
        highest[:, max(0, highest.shape[1] - local) :] = float("inf")
        order = _first_of(highest.detach(), n)
        y[t, :, : order.shape[1]] = order.to(torch.int32)
    return y


def _selected_attention(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    q, k, v, positions, sequences, table, selected, *sinks = inputs
    k, v = plain_cache(k, attributes, "k_dtype"), plain_cache(v, attributes, "v_dtype")
    size, n_head = integer(attributes, "selection_block"), q.shape[1]
    each, kv_each = n_head // selected.shape[1], n_head // k.shape[1]
    results = []
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = _count_seen(position, sequence, table, attributes)
        heads = [q.new_zeros(v.shape[2])] * n_head
        for group, blocks in enumerate(selected[t]):
            kept = torch.unique(blocks[blocks >= 0]).long()
            seen = (kept[:, None] * size + torch.arange(size, device=q.device)).reshape(-1)
            seen = seen[seen < n_seen]
            if not len(seen):
                continue
            cells = cells_of(seen, table[sequence], integer(attributes, "block_size"))
            keys, values = rows_at(k, cells), rows_at(v, cells)
            for head in range(group * each, (group + 1) * each):
                scores = keys[:, head // kv_each] @ q[t, head] * number(attributes, "scale")
                weights = softmax_with_sinks(scores, sinks[0][head : head + 1] if sinks else None)
                heads[head] = weights @ values[:, head // kv_each]
        results.append(torch.stack(heads))
    return torch.stack(results)


def _compress_rows(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    rows, scores, bias, positions, sequences, table = inputs
    ratio, overlaps = integer(attributes, "ratio"), integer(attributes, "overlaps")
    width = rows.shape[2] // (1 + overlaps)
    results = []
    for position, sequence in zip(positions.tolist(), sequences.tolist(), strict=True):
        n_seen = _count_seen(position, sequence, table, attributes)
        if (position + 1) % ratio or not 0 <= position < n_seen:
            results.append(rows.new_zeros(width))
            continue
        n_before = ratio if overlaps and position >= ratio else 0
        seen = torch.arange(position + 1 - ratio - n_before, position + 1, device=rows.device)
        cells = cells_of(seen, table[sequence], integer(attributes, "block_size"))
        values, weights = (rows_at(cache[:, 0], cells) for cache in (rows, scores))
        weights = weights + bias[seen % ratio]
        if overlaps:
            own = (seen >= position + 1 - ratio)[:, None]
            values, weights = (torch.where(own, x[:, width:], x[:, :width]) for x in (values, weights))
        results.append((weights.softmax(0) * values).sum(0))
    return torch.stack(results)


def _rows_of(groups: Tensor, cache: Tensor, blocks: Tensor, attributes: Attributes) -> Tensor:
    """The rows of groups; blocks: of a sequence."""
    last = (groups + 1) * integer(attributes, "ratio") - 1
    return rows_at(cache[:, 0], cells_of(last, blocks, integer(attributes, "block_size")))


def _select_compressed(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    q, k, positions, sequences, table, weights = inputs
    k = plain_cache(k, attributes, "k_dtype")
    y = torch.full((len(q), integer(attributes, "n")), -1, dtype=torch.int32, device=q.device)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_groups = _count_seen(position, sequence, table, attributes) // integer(attributes, "ratio")
        if not n_groups:
            continue
        keys = _rows_of(torch.arange(n_groups, device=q.device), k, table[sequence], attributes)
        scores = weights[t] @ (q[t] @ keys.T).clamp_min(0)
        order = _first_of(scores.detach(), y.shape[1])
        y[t, : len(order)] = order.to(torch.int32)
    return y


def _compressed_attention(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    q, k, rows, positions, sequences, k_table, table, sinks, *selected = inputs
    k, rows = (plain_cache(cache, attributes, "k_dtype") for cache in (k, rows))
    results = []
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = _count_seen(position, sequence, k_table, attributes)
        n_groups = _count_seen(position, sequence, table, attributes) // integer(attributes, "ratio")
        if not n_seen:
            results.append(torch.zeros_like(q[t]))
            continue
        first = max(0, position + 1 - integer(attributes, "window"))
        seen = torch.arange(first, n_seen, device=q.device)
        near = rows_at(k[:, 0], cells_of(seen, k_table[sequence], integer(attributes, "block_size")))
        groups = torch.unique(selected[0][t]).long() if selected else torch.arange(n_groups, device=q.device)
        groups = groups[(groups >= 0) & (groups < n_groups)]
        keys = torch.cat([near, _rows_of(groups, rows, table[sequence], attributes)])
        weights = softmax_with_sinks(q[t] @ keys.T * number(attributes, "scale"), sinks[:, None])
        results.append(weights @ keys)
    return torch.stack(results)


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "select_blocks": _select_blocks,
    "selected_attention": _selected_attention,
    "compress_rows": _compress_rows,
    "select_compressed": _select_compressed,
    "compressed_attention": _compressed_attention,
}
