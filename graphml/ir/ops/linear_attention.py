"""Linear attention, with one matrix per head as state instead of a cache: gated delta rule, plain decay.

The state of a head maps keys to values: a matrix S [V, K], which a query reads as S q. Letters: T tokens, S
sequences, N heads, G heads of queries and keys, K width of a key, V width of a value, U updates of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, number
from graphml.ir.ops.attention import alibi_slopes
from graphml.ir.ops.recurrent import SAMPLE_SEQUENCES, runs, token_fills, want_tokens
from graphml.ir.ops.rules import ROWS, f32, i32, want_dtype
from graphml.ir.shape import Dim, fixed

# State [N, V, K] and the number of a token -> state, y [N, V].
Token = Callable[[Array, int], tuple[Array, Array]]
Fill = dict[int, Callable[[np.random.Generator, tuple[int, ...]], Array]]


def _want(role: str, value: Type, *shapes: tuple[Dim, ...]) -> None:
    want_dtype(value, F32, role)
    if value.shape not in shapes:
        wanted = " or ".join(map(repr, (f32(*shape) for shape in shapes)))
        raise ShapeError(f"wanted {role} {wanted}; got {value}")


def _infer_delta(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, q, k, v, decay, beta, sequences, positions = inputs
    want_dtype(state, F32, "state")
    (_, n_head, v_width, k_width), (tokens, n_group, _) = state.shape, q.shape
    updates = k.shape[1:2] if len(k.shape) == 4 else ()
    want_tokens(q, sequences, positions)
    _want("q", q, (tokens, n_group, k_width))
    _want("k", k, (tokens, *updates, n_group, k_width))
    _want("v", v, (tokens, *updates, n_head, v_width))
    _want("decay", decay, (tokens, n_head, 1), (tokens, n_head, k_width))
    _want("beta", beta, (tokens, *updates, n_head, 1))
    if fixed(n_head) % fixed(n_group):
        raise ShapeError(f"wanted in q a number of heads that divides the {n_head} of the state; got {q}")
    return Type(F32, (tokens, n_head, v_width))


def n_updates(k: Type) -> int:
    """How often a token changes the state in the gated delta rule, by the type of its keys."""
    return fixed(k.shape[1]) if len(k.shape) == 4 else 1


def _infer_linear(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, q, k, v, sequences, positions, *gates = inputs
    want_dtype(state, F32, "state")
    (_, n_head, v_width, k_width), tokens = state.shape, q.shape[0]
    want_tokens(q, sequences, positions)
    _want("q", q, (tokens, n_head, k_width))
    _want("k", k, q.shape)
    _want("v", v, (tokens, n_head, v_width))
    if len(gates) not in (0, 1, 3):
        raise ShapeError(f"wanted decay, or decay with remove and replace, or none of them; got {gates}")
    if gates:
        _want("decay", gates[0], (tokens, n_head, 1), q.shape)
    for role, value in zip(("remove", "replace"), gates[1:], strict=False):
        _want(role, value, q.shape)
    return v


def _over_tokens(state: Array, sequences: Array, positions: Array, like: Array, token: Token) -> Array:
    """The y of all tokens, sequence by sequence in their order; changes the state. In float64."""
    y = np.zeros(like.shape, np.float32)
    for run in runs(sequences, positions, len(state)):
        memory = state[run.sequence].astype(np.float64)
        if run.fresh:
            memory = np.zeros_like(memory)
        for t in range(run.first, run.end):
            memory, y[t] = token(memory, t)
        state[run.sequence] = memory
    return y


def _delta(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Yang et al. 2024 (arXiv:2412.06464): S = S * decay; S += beta * (v - S k) k^T; y = scale * S q.

    A head reads the q and k of head `n % G`, or if `grouped` of head `n // (N / G)`. A decay for each element
    of a key: Kimi Team 2025 (arXiv:2510.26692). k [T, U, G, K], v [T, U, N, V] and beta [T, U, N, 1]: the
    second step is done for each of them in turn, the others once (Siems et al. 2025, arXiv:2502.10297).
    """
    state, q, k, v, decay, beta, sequences, positions = inputs
    n_head, n_group = state.shape[1], q.shape[1]
    head = np.arange(n_head)
    group = head // (n_head // n_group) if attributes["grouped"] else head % n_group
    scale = number(attributes, "scale")
    each = [x if x.ndim == 4 else x[:, None] for x in (k, v, beta)]

    def token(memory: Array, t: int) -> tuple[Array, Array]:
        memory = memory * decay[t][:, None, :]
        for key_GK, value, rate in zip(*(x[t] for x in each), strict=True):
            key = key_GK[group].astype(np.float64)
            wrong = rate * (value - np.einsum("nvk,nk->nv", memory, key))
            memory = memory + wrong[:, :, None] * key[:, None, :]
        return memory, scale * np.einsum("nvk,nk->nv", memory, q[t, group].astype(np.float64))

    return _over_tokens(state, sequences, positions, each[1][:, 0], token)


def _linear(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """S = S * decay + (S remove) replace^T + v k^T; y = scale * S q, of the S before all that if `before`.

    Without decay it is e to the minus `slope` times ALiBi's slope of the head, as in lightning attention
    (Qin et al. 2024, arXiv:2401.04658). RWKV-6 reads the S before (Peng et al. 2024, arXiv:2404.05892), 7
    removes and replaces (Peng et al. 2025, arXiv:2503.14456).
    """
    state, q, k, v, sequences, positions, *gates = inputs
    scale = number(attributes, "scale")
    fading = np.exp(-number(attributes, "slope") * alibi_slopes(state.shape[1], 8.0))[:, None]

    def token(memory: Array, t: int) -> tuple[Array, Array]:
        decay = gates[0][t] if gates else fading
        after = memory * decay[:, None, :]
        if len(gates) > 1:
            removed = np.einsum("nvk,nk->nv", memory, gates[1][t].astype(np.float64))
            after = after + removed[:, :, None] * gates[2][t][:, None, :]
        after = after + v[t].astype(np.float64)[:, :, None] * k[t][:, None, :]
        read = memory if attributes["before"] else after
        return after, scale * np.einsum("nvk,nk->nv", read, q[t].astype(np.float64))

    return _over_tokens(state, sequences, positions, v, token)


def _unit(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Keys of length 1, with which the delta rule is stable."""
    x = generator.standard_normal(shape)
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), dtype=np.float32)


def _fraction(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.uniform(0.1, 1.0, shape).astype(np.float32)


def _delta_samples() -> list[Sample]:
    going_on, beginning, astray = token_fills(6, 7)

    def call(
        n_head: int, n_group: int, k: int, v: int, each: bool, fill: Fill, grouped: bool = False,
        updates: tuple[int, ...] = (),
    ) -> Sample:  # fmt: skip
        state, keys = f32(SAMPLE_SEQUENCES, n_head, v, k), f32(ROWS, *updates, n_group, k)
        gates = f32(ROWS, n_head, k if each else 1), f32(ROWS, *updates, n_head, 1)
        values = f32(ROWS, *updates, n_head, v)
        inputs = (state, f32(ROWS, n_group, k), keys, values, *gates, i32(ROWS), i32(ROWS))
        full: Fill = {2: _unit, 4: _fraction, 5: _fraction, **fill}
        return Sample(inputs, {"scale": k**-0.5, "grouped": grouped}, full)

    return [call(4, 2, 32, 32, False, going_on, grouped=True), call(4, 2, 32, 32, False, beginning),
            call(2, 2, 128, 128, True, going_on), call(1, 1, 64, 24, False, beginning),
            call(3, 3, 20, 12, True, beginning), call(4, 2, 32, 32, False, astray),
            call(4, 2, 32, 12, False, going_on, True, (2,)), call(2, 1, 20, 8, True, beginning, False, (3,)),
            call(4, 2, 64, 32, False, astray, False, (2,)),
            call(1, 1, 8, 4, False, going_on, False, (1,))]  # fmt: skip


def _linear_samples() -> list[Sample]:
    going_on, beginning, astray = token_fills(4, 5)

    def call(
        n_head: int, width: int, gates: int, fill: Fill, each: bool = True, **attributes: float
    ) -> Sample:
        keys = f32(ROWS, n_head, width)
        more = (keys if each else f32(ROWS, n_head, 1), keys, keys)[:gates]
        inputs = (f32(SAMPLE_SEQUENCES, n_head, width, width), keys, keys, keys, i32(ROWS), i32(ROWS), *more)
        full: Fill = {2: _unit, 6: _fraction, 7: _unit, 8: _unit, **fill}
        return Sample(inputs, attributes, {i: filling for i, filling in full.items() if i < len(inputs)})

    return [call(4, 32, 0, going_on, slope=0.7), call(2, 64, 1, beginning, before=True),
            call(2, 64, 1, going_on, each=False), call(3, 64, 3, going_on),
            call(2, 20, 3, beginning), call(2, 64, 1, astray, before=True)]  # fmt: skip


gated_delta_net = Op("gated_delta_net", "recurrent", infer=_infer_delta, reference=_delta,
                     samples=_delta_samples, attributes={"scale": 1.0, "grouped": False}, inplace=(3,),
                     writes=0, recurrent=True)  # fmt: skip
linear_attention = Op("linear_attention", "recurrent", infer=_infer_linear, reference=_linear,
                      samples=_linear_samples, attributes={"scale": 1.0, "slope": 0.0, "before": False},
                      inplace=(3,), writes=0, recurrent=True)  # fmt: skip
