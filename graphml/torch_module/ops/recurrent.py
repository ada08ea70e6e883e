"""Recurrent ops in PyTorch, token by token, as `graphml.ir.ops` has them in NumPy.

Each returns its value and the changed state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphml.ir.op import Attributes, number
from graphml.ir.ops.attention import alibi_slopes
from graphml.ir.ops.ngram import ngram_rows
from graphml.ir.ops.recurrent import TokenRun, runs

Token = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""The state of a sequence and the number of a token -> the state behind it, and the token's value."""


def _runs(state: Tensor, sequences: Tensor, positions: Tensor) -> list[TokenRun]:
    return list(runs(sequences.cpu().numpy(), positions.cpu().numpy(), len(state)))


def _over_tokens(
    state: Tensor, sequences: Tensor, positions: Tensor, empty: Tensor, token: Token
) -> tuple[Tensor, Tensor]:
    """The values of all tokens, those of no sequence zeros as in `empty`; and the changed state."""
    values, rows = list(empty), list(state)
    for run in _runs(state, sequences, positions):
        memory = torch.zeros_like(rows[run.sequence]) if run.fresh else rows[run.sequence]
        for t in range(run.first, run.end):
            memory, values[t] = token(memory, t)
        rows[run.sequence] = memory
    return torch.stack(values), torch.stack(rows)


def _ssm_conv(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    state, x, weight, sequences, positions = inputs[:5]
    rows, y = list(state), torch.zeros_like(x)
    for run in _runs(state, sequences, positions):
        n = run.end - run.first
        before = torch.zeros_like(rows[run.sequence]) if run.fresh else rows[run.sequence]
        seen = torch.cat([before, x[run.first : run.end]])
        total = functional.conv1d(seen.T[None], weight[:, None], groups=len(weight))[0].T
        if len(inputs) > 5:
            total = total + inputs[5]
        y = y.index_put((torch.arange(run.first, run.end, device=x.device),), total)
        rows[run.sequence] = seen[n:]
    return y, torch.stack(rows)


def _ssm_scan(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    state, x, dt, a, b, c, d, sequences, positions = inputs
    _, n_head, d_state, head_dim = state.shape
    step = functional.softplus(dt, threshold=1e3)  # exactly, as logaddexp
    per_head = a.shape == (n_head, 1)
    alike = (n_head, 1, 1) if per_head else (1, 1, head_dim)
    decay = a[:, :, None] if per_head else a.T[None]
    each = n_head * d_state // b.shape[1]
    b_now, c_now = (m.reshape(len(x), -1, d_state).repeat_interleave(each, 1)[..., None] for m in (b, c))

    def token(now: Tensor, t: int) -> tuple[Tensor, Tensor]:
        x_t, step_t = x[t].reshape(n_head, 1, head_dim), step[t].reshape(alike)
        now = now * torch.exp(step_t * decay) + x_t * step_t * b_now[t]
        y_t = (now * c_now[t]).sum(1, keepdim=True) + x_t * d.reshape(alike)
        return now, y_t.reshape(-1)

    return _over_tokens(state, sequences, positions, torch.zeros_like(x), token)


def _gated_delta_net(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    state, q, k, v, decay, beta, sequences, positions = inputs
    n_head, n_group = state.shape[1], q.shape[1]
    head = torch.arange(n_head, device=q.device)
    group = head // (n_head // n_group) if attributes["grouped"] else head % n_group
    scale = number(attributes, "scale")
    each = [x if x.ndim == 4 else x[:, None] for x in (k, v, beta)]

    def token(memory: Tensor, t: int) -> tuple[Tensor, Tensor]:
        memory = memory * decay[t][:, None, :]
        for keys, value, rate in zip(*(x[t] for x in each), strict=True):
            key = keys[group]
            wrong = rate * (value - torch.einsum("nvk,nk->nv", memory, key))
            memory = memory + wrong[:, :, None] * key[:, None, :]
        return memory, scale * torch.einsum("nvk,nk->nv", memory, q[t, group])

    return _over_tokens(state, sequences, positions, torch.zeros_like(each[1][:, 0]), token)


def _linear_attention(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    state, q, k, v, sequences, positions, *gates = inputs
    scale = number(attributes, "scale")
    slopes = torch.from_numpy(alibi_slopes(state.shape[1], 8.0)).to(q)
    fading = torch.exp(-number(attributes, "slope") * slopes)[:, None]

    def token(memory: Tensor, t: int) -> tuple[Tensor, Tensor]:
        after = memory * (gates[0][t] if gates else fading)[:, None, :]
        if len(gates) > 1:
            removed = torch.einsum("nvk,nk->nv", memory, gates[1][t])
            after = after + removed[:, :, None] * gates[2][t][:, None, :]
        after = after + v[t][:, :, None] * k[t][:, None, :]
        read = memory if attributes["before"] else after
        return after, scale * torch.einsum("nvk,nk->nv", read, q[t])

    return _over_tokens(state, sequences, positions, torch.zeros_like(v), token)


def _ngram_rows(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    """By the meaning in NumPy: hashes of ids in whole numbers of 64 bits, which torch does not have."""
    arrays = [x.detach().cpu().numpy().copy() for x in inputs]
    assert ngram_rows.reference is not None
    rows = ngram_rows.reference(arrays, attributes)
    return torch.from_numpy(rows).to(inputs[1].device), torch.from_numpy(arrays[0]).to(inputs[0])


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "ssm_conv": _ssm_conv,
    "ssm_scan": _ssm_scan,
    "gated_delta_net": _gated_delta_net,
    "linear_attention": _linear_attention,
    "ngram_rows": _ngram_rows,
}
