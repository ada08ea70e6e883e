"""Attention with a memory against what its papers say of it: recall, and sums over all earlier tokens."""

import numpy as np
import pytest

from graphml.errors import ShapeError
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.ops.attention import alibi_slopes
from graphml.ir.ops.linear_attention import gated_delta_net, linear_attention

T, N, K = 6, 2, 8


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def one_sequence(count: int = T, first: int = 0) -> tuple[Array, Array]:
    return np.zeros(count, np.int32), np.arange(first, first + count, dtype=np.int32)


def delta(state: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array, *tokens: Array) -> Array:
    assert gated_delta_net.reference is not None
    attributes = {"scale": 1.0, "grouped": False}
    return gated_delta_net.reference([state, q, k, v, decay, beta, *tokens], attributes)


def linear(state: Array, q: Array, k: Array, v: Array, *more: Array, **attributes: float) -> Array:
    assert linear_attention.reference is not None
    defaults = {"scale": 1.0, "slope": 0.0, "before": False}
    return linear_attention.reference([state, q, k, v, *more], {**defaults, **attributes})


def test_the_delta_rule_recalls_what_was_written_last_under_a_key() -> None:
    """Keys of length 1 at right angles: the memory holds one value for each, the newest."""
    keys = np.eye(K, dtype=np.float32)[[0, 1, 0]][:, None]
    v, ones, state = drawn(3, 1, K), np.ones((3, 1, 1), np.float32), np.zeros((1, 1, K, K), np.float32)
    y = delta(state, keys, keys, v, ones, ones, *one_sequence(3))
    np.testing.assert_allclose(y, v, atol=1e-6)
    asked = np.eye(K, dtype=np.float32)[[0, 1]][:, None]
    nothing = np.zeros((2, 1, 1), np.float32)
    y = delta(state, asked, asked, drawn(2, 1, K, seed=1), ones[:2], nothing, *one_sequence(2, first=3))
    np.testing.assert_allclose(y, v[[2, 1]], atol=1e-6)


@pytest.mark.parametrize("before", [False, True])
def test_linear_attention_is_the_sum_over_earlier_tokens_that_fade(before: bool) -> None:
    q, k, v = (drawn(T, N, K, seed=seed) for seed in range(3))
    y = linear(np.full((1, N, K, K), np.nan, np.float32), q, k, v, *one_sequence(), slope=0.5, before=before)
    rate = 0.5 * alibi_slopes(N, 8.0)
    for t in range(T):
        last = t if before else t + 1
        wanted = np.zeros((N, K))
        for s in range(last):
            weight = np.exp(-rate * (last - 1 - s)) * np.einsum("nk,nk->n", q[t], k[s])
            wanted += weight[:, None] * v[s]
        np.testing.assert_allclose(y[t], wanted, atol=1e-5)


def test_removing_and_replacing_is_the_delta_rule_in_other_words() -> None:
    """S * w - beta (S * w) k k^T: remove is w * k, replace is -beta k, and the value beta v."""
    q, k, v = (drawn(T, N, K, seed=seed) for seed in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay, beta = np.abs(drawn(T, N, K, seed=3)) % 1, np.abs(drawn(T, N, 1, seed=4)) % 1
    first, second = (drawn(1, N, K, K, seed=5) for _ in range(2))
    tokens = one_sequence(first=7)
    wanted = delta(first, q, k, v, decay, beta, *tokens)
    y = linear(second, q, k, beta * v, *tokens, decay, decay * k, -beta * k)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    np.testing.assert_allclose(second, first, atol=1e-5)


def test_sequences_of_a_step_do_not_meet() -> None:
    q, k, v, decay = (drawn(T, N, K, seed=seed) for seed in range(4))
    sequences, positions = np.array([1, 1, 0, 0, 0, 0], np.int32), np.array([3, 4, 0, 1, 2, 3], np.int32)
    state = drawn(2, N, K, K)
    apart, together = state.copy(), state.copy()
    y = linear(together, q, k, v, sequences, positions, decay)
    for tokens in (slice(0, 2), slice(2, 3), slice(3, 6)):
        wanted = linear(
            apart, q[tokens], k[tokens], v[tokens], sequences[tokens], positions[tokens], decay[tokens]
        )
        np.testing.assert_allclose(y[tokens], wanted, atol=1e-6)
    np.testing.assert_allclose(together, apart, atol=1e-6)


def test_updates_of_a_token_are_tokens_that_no_query_reads_and_that_do_not_decay() -> None:
    """As flash-linear-attention has it: the updates follow each other as tokens of their own."""
    updates = 3
    q, decay = drawn(T, N, K), np.abs(drawn(T, N, K, seed=1)) % 1
    k, v = (drawn(T, updates, N, K, seed=seed) for seed in (2, 3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = np.abs(drawn(T, updates, N, 1, seed=4)) % 2
    first, second = (drawn(1, N, K, K, seed=5) for _ in range(2))
    y = delta(first, q, k, v, decay, beta, *one_sequence(first=2))
    queries, decays = np.zeros((T, updates, N, K), np.float32), np.ones((T, updates, N, K), np.float32)
    queries[:, -1], decays[:, 0] = q, decay
    apart = [x.reshape(T * updates, N, -1) for x in (queries, k, v, decays, beta)]
    wanted = delta(second, *apart, *one_sequence(T * updates, first=2))
    np.testing.assert_allclose(y, wanted[updates - 1 :: updates], atol=1e-5)
    np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("role", ["k", "v", "beta", "q"])
def test_operands_of_another_number_of_updates_are_refused(role: str) -> None:
    g = Builder(max_tokens=4)
    shapes = {"q": (N, K), "k": (2, N, K), "v": (2, N, K), "decay": (N, 1), "beta": (2, N, 1)}
    shapes[role] = (3, *shapes[role][-2:])
    x = {name: g.input(name, F32, (g.n_tokens, *shape)) for name, shape in shapes.items()}
    wanted = rf"\[gated_delta_net\].*wanted {'v' if role == 'k' else role} f32\[T<=4, .*; got f32\[T<=4, "
    wanted = r"\[gated_delta_net\] takes operands of another number or rank" if role == "q" else wanted
    with pytest.raises(ShapeError, match=wanted):
        g.gated_delta_net(*x.values(), layer=0, scale=1.0)
