"""Recurrent functions of classes as ops of a trace: a step of one token with its state, for each token.

Classes compute them over chunks or by a loop over the tokens, which torch.export unrolls at one length. While
a module is exported each function that is named here is replaced by an op of this file, once both agree on
the module's own arguments and on changed ones. Knows torch; nothing of graphml.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from peer_talk import RefusedError

KIND = "ArchitectureError"
LIMIT = 1e-8  # NMSE of float32, of values that may be sums of many tokens
SCAN = "(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor d) -> Tensor"
DECAYED = "(Tensor x, Tensor decay) -> Tensor"
DELTA = "(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, float scale) -> Tensor"
Function = Callable[..., Any]


def ssm_scan(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Mamba (arXiv:2312.00752) and Mamba 2 (arXiv:2405.21060).

    state = e^(step a) state + step x b, y = state c + d x; step is the softplus of dt.
    x [B, T, N, P], dt [B, T, N] before softplus, a [N] or [N, S], b and c [B, T, G, S], d [N].
    """
    import torch

    step = torch.nn.functional.softplus(dt)
    b, c = (matrix.repeat_interleave(x.shape[2] // b.shape[2], 2) for matrix in (b, c))
    fading = a.reshape(a.shape[0], 1, -1)
    state = x.new_zeros((*x[:, 0].shape, b.shape[-1]))
    rows = []
    for t in range(x.shape[1]):
        step_t = step[:, t, :, None, None]
        state = state * torch.exp(step_t * fading) + step_t * x[:, t, :, :, None] * b[:, t, :, None]
        rows.append((state * c[:, t, :, None]).sum(-1) + x[:, t] * d[:, None])
    return torch.stack(rows, 1)


def delta_rule(q: Any, k: Any, v: Any, decay: Any, beta: Any, scale: float) -> Any:
    """The gated delta rule (arXiv:2412.06464): S = S decay; S += beta (v - S k) k^T; y = scale S q.

    q, k [B, T, G, K], v [B, T, N, V], beta [B, T, N]; decay [B, T, N, 1], or [B, T, N, K] for each element of
    a key.
    """
    import torch

    q, k = (each.repeat_interleave(v.shape[2] // each.shape[2], 2) for each in (q, k))
    state = v.new_zeros((*v[:, 0].shape, k.shape[-1]))
    rows = []
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, None]
        wrong = v[:, t] - (state * k[:, t, :, None]).sum(-1)
        state = state + (beta[:, t, :, None] * wrong)[..., None] * k[:, t, :, None]
        rows.append(scale * (state * q[:, t, :, None]).sum(-1))
    return torch.stack(rows, 1)


def decayed_sum(x: Any, decay: Any) -> Any:
    """A linear recurrence of each element, [B, T, W]: state = decay state + x (arXiv:2402.19427)."""
    import torch

    state = torch.zeros_like(x[:, 0])
    rows = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        rows.append(state)
    return torch.stack(rows, 1)


@functools.cache
def _ops() -> tuple[Any, Any, Any]:
    """All as ops of torch, whose results are like x, v and x."""
    import torch

    scan = torch.library.custom_op("graphml::ssm_scan", ssm_scan, mutates_args=(), schema=SCAN)
    scan.register_fake(lambda x, dt, a, b, c, d: torch.empty_like(x))
    delta = torch.library.custom_op("graphml::delta_rule", delta_rule, mutates_args=(), schema=DELTA)
    delta.register_fake(lambda q, k, v, decay, beta, scale: torch.empty_like(v))
    decayed = torch.library.custom_op("graphml::decayed_sum", decayed_sum, mutates_args=(), schema=DECAYED)
    decayed.register_fake(lambda x, decay: torch.empty_like(x))
    return scan, delta, decayed


def _refuse_others(name: str, **wanted: tuple[Any, Any]) -> None:
    """RefusedError for an argument that a function's op has not: what came, what is known."""
    for argument, (came, known) in wanted.items():
        if came is not known and not (isinstance(came, bool) and came == known):
            raise RefusedError(f"{name}: {argument} is {came!r}: wanted {known!r}", KIND)


def _scanned(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None,
    delta_bias: Any = None, delta_softplus: bool = False, return_last_state: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """`mamba_selective_scan`: x and dt [B, channels, T], A [channels, S], B and C [B, S, T]."""
    import torch

    _refuse_others("mamba_selective_scan", delta_softplus=(delta_softplus, True),
                   return_last_state=(return_last_state, False), D=(D is not None, True))  # fmt: skip
    step = dt if delta_bias is None else dt + delta_bias[:, None]
    x, step, b, c = (each.transpose(1, 2) for each in (hidden_states, step, B, C))
    y = _ops()[0](x.unsqueeze(3), step, A, b.unsqueeze(2), c.unsqueeze(2), D).squeeze(3).transpose(1, 2)
    return y if z is None else y * torch.nn.functional.silu(z)


def _scanned_heads(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None,
    dt_bias: Any = None, initial_states: Any = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf), return_final_states: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """`mamba2_chunk_scan`: x [B, T, N, P], dt [B, T, N], A and D [N], B and C [B, T, G, S]."""
    _refuse_others("mamba2_chunk_scan", dt_softplus=(dt_softplus, True), D=(D is not None, True),
                   initial_states=(initial_states, None), z=(others.get("z"), None),
                   return_final_states=(return_final_states, False))  # fmt: skip
    step = dt if dt_bias is None else dt + dt_bias
    low, high = (None if limit in (0.0, math.inf) else _before_softplus(limit) for limit in dt_limit)
    if (low, high) != (None, None):
        step = step.clamp(low, high)
    return _ops()[0](hidden_states, step, A, B, C, D)


def _before_softplus(value: float) -> float:
    """The number whose softplus it is."""
    return value + math.log(-math.expm1(-value))


def _delta(
    query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """`torch_chunk_gated_delta_rule`, g [B, T, N], and `chunk_kimi_delta_attention`, g [B, T, N, K]."""
    import torch

    _refuse_others("gated delta rule", initial_state=(initial_state, None),
                   output_final_state=(output_final_state, False))  # fmt: skip
    width = key.shape[-1]
    if use_qk_l2norm_in_kernel:  # x over the root of its squares' sum and eps
        query, key = (
            torch.nn.functional.rms_norm(each, (width,), eps=1e-6 / width) * width**-0.5
            for each in (query, key)
        )
    decay = g.exp() if g.ndim == 4 else g.exp().unsqueeze(3)
    return _ops()[1](query, key, value, decay, beta, width**-0.5), None


def _decayed(
    module: Any, hidden_states: Any, recurrent_gate: Any, reset: Any, recurrent_states: Any, **others: Any
) -> Any:
    """`_rnn_scan` of a module: x and decay [B, T, W], which is 0 where a text begins; no state before it."""
    _refuse_others("_rnn_scan", recurrent_states=(recurrent_states, None))
    return _ops()[2](hidden_states, recurrent_gate), None


METHODS: dict[str, Function] = {"_rnn_scan": _decayed}
"""Names of methods of classes -> the same."""
FUNCTIONS: dict[str, Function] = {
    "mamba_selective_scan": _scanned,
    "mamba2_chunk_scan": _scanned_heads,
    "torch_chunk_gated_delta_rule": _delta,
    "chunk_kimi_delta_attention": _delta,
}
"""Names in the files of classes -> what computes the same by an op."""


@contextmanager
def as_ops(module: Any, ids: Any) -> Iterator[None]:
    """While a module is exported: its recurrent functions as ops, after they were compared on ids."""
    import torch

    kinds = {type(part) for part in module.modules()}
    files = {sys.modules.get(kind.__module__) for kind in kinds}
    known = [
        (owner, name, getattr(owner, name), replacement)
        for owners, replacements in ((files, FUNCTIONS), (kinds, METHODS))
        for owner in owners
        for name, replacement in replacements.items()
        if name in vars(owner)
    ]
    if not known:
        yield
        return
    try:
        for owner, name, function, replacement in known:
            setattr(owner, name, _compared(name, function, replacement))
        with torch.no_grad():
            module(ids)
        for owner, name, _, replacement in known:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, function, _ in known:
            setattr(owner, name, function)


def _compared(name: str, function: Function, replacement: Function) -> Function:
    """The class's function, which first compares the op with it, on its arguments and on changed ones."""

    def compare(*arguments: Any, **named: Any) -> Any:
        for seed in (None, 0, 1):
            values, by_name = _changed(list(arguments), seed), _changed(named, seed)
            wanted, mine = (_first(each(*values, **by_name)).double() for each in (function, replacement))
            error = float(((wanted - mine) ** 2).mean() / (wanted**2).mean().clamp(min=1e-30))
            if not error <= LIMIT:
                raise RefusedError(f"{name} computes otherwise than its op: NMSE {error:.1e}", KIND)
        return function(*arguments, **named)

    return compare


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _changed(arguments: Any, seed: int | None) -> Any:
    """Tensors of numbers times others about 1, of their signs; those of both signs and zeros less small."""
    import torch

    if seed is None:
        return arguments
    generator = torch.Generator().manual_seed(seed)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        factor = 0.5 + torch.rand(value.shape, generator=generator)
        is_signed = bool((value > 0).any() == (value < 0).any())
        noise = 0.3 * torch.randn(value.shape, generator=generator) if is_signed else 0.0
        return value * factor + noise

    if isinstance(arguments, dict):
        return {name: change(value) for name, value in arguments.items()}
    return [change(value) for value in arguments]
