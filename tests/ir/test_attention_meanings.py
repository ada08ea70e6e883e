"""What rope and attention mean, spelled out in plain NumPy: rotated pairs, biases, a dense softmax."""

from __future__ import annotations

import math

import graphml_quant
import numpy as np
import pytest

from graphml.ir.op import Array
from graphml.ir.ops.attention import alibi_slopes
from tests.ir.meanings import normal, run
from tests.looped import looped


@looped("mode", ["norm", "neox"])
@looped(("d", "n_rot"), [(64, 64), (80, 32), (6, 6)])
def test_rope_turns_pairs_as_complex_numbers(mode: str, d: int, n_rot: int) -> None:
    positions = np.array([0, 1, 7, 4000], np.int32)
    x = normal(4, 3, d)
    got = run("rope", x, run("rope_table", positions, n_rot=n_rot, freq_base=5000.0), mode=mode)
    pairs = [(2 * j, 2 * j + 1) if mode == "norm" else (j, j + n_rot // 2) for j in range(n_rot // 2)]
    wanted = x.astype(np.float64)
    for t, position in enumerate(positions):
        for j, (a, b) in enumerate(pairs):
            turn = complex(0, int(position) * 5000.0 ** (-2 * j / n_rot))
            rotated = (x[t, :, a] + 1j * x[t, :, b].astype(np.complex128)) * np.exp(turn)
            wanted[t, :, a], wanted[t, :, b] = rotated.real, rotated.imag
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[..., n_rot:], x[..., n_rot:])
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_rope_factors_divide_and_linear_scaling_multiplies_the_angles() -> None:
    positions, factors = np.array([0, 5], np.int32), np.array([1, 2, 4, 8], np.float32)
    plain = run("rope_table", positions, n_rot=8)
    np.testing.assert_allclose(plain[1, :, 0], np.cos(5 * 10000.0 ** (-np.arange(4) / 4)), rtol=1e-6)
    got = run("rope_table", positions, factors, n_rot=8, freq_scale=0.5)
    np.testing.assert_allclose(
        got[1, :, 1], np.sin(2.5 * 10000.0 ** (-np.arange(4) / 4) / factors), rtol=1e-5
    )
    np.testing.assert_allclose(run("rope_table", positions, n_rot=8, attn_factor=1.5), 1.5 * plain, rtol=1e-6)


def test_yarn_is_that_of_the_paper() -> None:
    """Appendix A.2 and section 3.4 of arXiv:2309.00071; ramp in dimensions as its published code has it."""
    dim, base, trained, s, fast, slow = 64, 10000.0, 4096, 4.0, 32.0, 1.0

    def dimension_with(rotations: float) -> float:
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dimension_with(fast)), 0), min(math.ceil(dimension_with(slow)), dim - 1)
    attributes = {"n_rot": dim, "freq_scale": 1 / s, "ext_factor": 1.0, "n_ctx_orig": trained}
    got = run("rope_table", np.array([1], np.int32), **attributes)[0].astype(np.float64)
    strength = 0.1 * math.log(s) + 1
    kinds = set()
    for j in range(dim // 2):
        frequency = base ** (-2 * j / dim)
        own = 1 - min(max((j - low) / (high - low), 0.0), 1.0)  # the share that is not interpolated
        kinds.add(own if own in (0, 1) else "between")
        angle = frequency * own + frequency / s * (1 - own)
        assert got[j, 0] == pytest.approx(strength * math.cos(angle), rel=1e-5)
        assert got[j, 1] == pytest.approx(strength * math.sin(angle), rel=1e-5, abs=1e-7)
    assert kinds == {0, 1, "between"}


def paper_slopes(n: int) -> list[float]:
    """As the code of Press et al. (2021) has it."""
    if math.log2(n).is_integer():
        start = 2 ** -(2 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    nearest = 2 ** math.floor(math.log2(n))
    return paper_slopes(nearest) + paper_slopes(2 * nearest)[0::2][: n - nearest]


@looped("n_head", [1, 2, 6, 8, 12, 16, 40, 71])
def test_alibi_slopes_are_those_of_the_paper_and_of_ggml(n_head: int) -> None:
    np.testing.assert_allclose(alibi_slopes(n_head, 8.0), paper_slopes(n_head), rtol=1e-9)
    lower = 2 ** math.floor(math.log2(n_head))
    m0, m1 = 2 ** (-4.0 / lower), 2 ** (-4.0 / 2 / lower)
    wanted = [m0 ** (h + 1) if h < lower else m1 ** (2 * (h - lower) + 1) for h in range(n_head)]
    np.testing.assert_allclose(alibi_slopes(n_head, 4.0), wanted, rtol=1e-9)
    assert not alibi_slopes(n_head, 0.0).any()


def dense_attention(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    *,
    scale: float,
    window: int,
    softcap: float,
    max_bias: float,
    sinks: Array | None,
    causal: bool = True,
) -> Array:
    """One sequence whose keys lie in order of position, every score computed, the unseen ones masked."""
    n_tokens, n_head, _ = q.shape
    out = np.zeros((n_tokens, n_head, v.shape[2]))
    for h in range(n_head):
        kv = h // (n_head // k.shape[1])
        scores = q[:, h].astype(np.float64) @ k[:, kv].astype(np.float64).T * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        distance = positions[:, None].astype(np.int64) - np.arange(len(k))[None, :]
        scores = scores - alibi_slopes(n_head, max_bias)[h] * np.abs(distance)
        hidden = (distance < 0) | ((distance >= window) if window else False)
        if not causal:
            hidden = np.abs(distance) > (window // 2 if window else len(k))
        scores[hidden] = -np.inf
        if sinks is not None:
            scores = np.concatenate([scores, np.full((n_tokens, 1), float(sinks[h]))], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[:, h] = weights[:, : len(k)] @ v[:, kv].astype(np.float64)
    return out


@looped("cache_dtype", ["f32", "f16", "bf16"])
@looped(
    "extra",
    [{}, {"window": 5}, {"softcap": 2.0}, {"max_bias": 8.0}, {"sinks": True},
     {"window": 3, "softcap": 4.0, "max_bias": 4.0, "sinks": True}, {"causal": False},
     {"causal": False, "window": 9, "max_bias": 4.0, "sinks": True}],
    ids=str,
)  # fmt: skip
def test_paged_attention_is_dense_attention(extra: dict[str, float], cache_dtype: str) -> None:
    n_head, n_head_kv, d, d_v, block, length = 6, 2, 16, 12, 4, 23
    n_blocks = -(-length // block)
    keys = [normal(length, n_head_kv, d, seed=seed) for seed in (1, 2)]
    values = [normal(length, n_head_kv, d_v, seed=seed) for seed in (3, 4)]
    table_SB = (
        np.random.default_rng(5).permutation(2 * n_blocks + 3)[: 2 * n_blocks].reshape(2, -1).astype(np.int32)
    )
    caches = []
    for parts, width in ((keys, d), (values, d_v)):
        cache = np.full(((2 * n_blocks + 3) * block, n_head_kv, width), 1e3, np.float32)  # loud where unused
        for sequence, part in enumerate(parts):
            for position, row in enumerate(part):
                cache[table_SB[sequence, position // block] * block + position % block] = row
        caches.append(cache)
    if cache_dtype == "f16":
        caches = [cache.astype(np.float16) for cache in caches]
    elif cache_dtype == "bf16":
        caches = [graphml_quant.quantize(graphml_quant.by_name("bf16"), cache) for cache in caches]
    positions = np.array([22, 0, 7, 8, 21, 3], np.int32)
    sequences = np.array([0, 0, 1, 0, 1, 1], np.int32)
    q = normal(6, n_head, d, seed=6)
    attributes = {"window": 0, "softcap": 0.0, "max_bias": 0.0, **extra}
    sinks = normal(n_head, seed=7) if attributes.pop("sinks", False) else None
    more = () if sinks is None else (sinks,)
    if not attributes.get("causal", True):
        more = (*more, np.full(2, length, np.int32))
    got = run("attention", q, *caches, positions, sequences, table_SB, *more, scale=0.3, block_size=block,
              k_dtype=cache_dtype, v_dtype=cache_dtype, **attributes)  # fmt: skip
    for sequence in (0, 1):
        mine = sequences == sequence
        wanted = dense_attention(
            q[mine], keys[sequence], values[sequence], positions[mine], scale=0.3, sinks=sinks, **attributes
        )
        tolerance = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}[cache_dtype]
        np.testing.assert_allclose(got[mine], wanted, rtol=tolerance, atol=tolerance)


def test_a_loud_sink_takes_all_the_attention_and_overflows_nothing() -> None:
    q, cache = normal(1, 2, 4), normal(4, 2, 4, seed=1)
    zero, table_SB = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    sinks = np.array([1000.0, -1000.0], np.float32)
    got = run("attention", q, cache, cache, zero, zero, table_SB, sinks, scale=1.0, block_size=4)
    np.testing.assert_allclose(got[0], [np.zeros(4), cache[0, 1]], rtol=1e-6)


def test_a_token_sees_to_the_bit_what_it_sees_alone_and_nothing_else_is_read() -> None:
    """Tokens whose windows overlap share copies of keys; blocks between those that do not may be gone."""
    positions, sequences = np.array([3, 40, 41, 42, 9, 60], np.int32), np.array([0, 0, 0, 0, 1, 1], np.int32)
    table = np.full((2, 8), 10**6, np.int32)
    table[0, [0, 4, 5]], table[1, [0, 1, 7]] = [5, 2, 0], [1, 4, 3]
    q, k, v = normal(6, 6, 16), normal(48, 2, 16), normal(48, 2, 8)
    attributes = {"scale": 0.25, "block_size": 8, "window": 4}
    batch = run("attention", q, k, v, positions, sequences, table, **attributes)
    for t in range(6):
        alone = run("attention", q[t : t + 1], k, v, positions[t : t + 1],
                    sequences[t : t + 1], table, **attributes)  # fmt: skip
        np.testing.assert_array_equal(batch[t], alone[0])
