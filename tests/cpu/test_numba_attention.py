"""The numba backend's caches and attention: exact encoders; a token has the same bits in any step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import graphml_quant
import numpy as np
import pytest

from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.op import Array

numba = pytest.importorskip("numba")
from graphml_numba.kernels.cache_formats import cell_format  # noqa: E402
from graphml_numba.kernels.cache_write import set_rows  # noqa: E402
from graphml_numba.kernels.formats import row_format  # noqa: E402
from graphml_numba.kernels.linear_attention import gated_delta_net  # noqa: E402
from graphml_numba.kernels.paged_attention import attention, no_bias  # noqa: E402

N_TOKENS, N_HEAD, N_KV, WIDTH, BLOCK = 150, 6, 2, 32, 8
F16 = row_format("f16")


def compiled(kernel: Any) -> Any:
    return numba.njit(error_model="numpy")(kernel)


def awkward_values() -> Array:
    """Rows of 32: random numbers of any magnitude, ties, zeros of both signs, numbers around the halves."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(32) * 10.0**power for power in range(-12, 6) for _ in range(20)]
    rows += [rng.integers(-127, 128, 32) / 2 for _ in range(40)]
    rows += [np.zeros(32), np.full(32, -0.0), np.full(32, 3.0), np.full(32, -1e-30), np.full(32, 65520.0)]
    rows += [np.where(np.arange(32) % 2, 0.0, -0.0), np.linspace(-8.5, 8.5, 32), np.full(32, 1e10)]
    below = np.arange(0, 0x7BFF, 7, dtype=np.uint16)
    below, above = (one.view(np.float16).astype(np.float32) for one in (below, below + np.uint16(1)))
    ties = (below + above) / 2  # of half precision
    kept = ties[: len(ties) // 32 * 32].reshape(-1, 32)
    return np.concatenate([np.array(rows, np.float32), kept, -kept])


@pytest.mark.parametrize("name", CACHE_DTYPES)
def test_numba_writes_the_bytes_of_the_encoder(name: str) -> None:
    x = awkward_values()
    wanted = x if name == "f32" else graphml_quant.quantize(graphml_quant.by_name(name), x)
    word, _ = cell_format(name)
    cache = np.zeros((len(x), 1, np.ascontiguousarray(wanted).view(word).shape[1]), word)
    cells = np.arange(len(x), dtype=np.int32)
    cells[3] = -1
    compiled(set_rows(*cell_format(name), True))(cache, x[:, None], cells, 0, len(x))
    got, kept = cache.view(np.uint8)[:, 0], np.arange(len(x)) != 3
    np.testing.assert_array_equal(got[kept], np.ascontiguousarray(wanted).view(np.uint8)[kept])
    assert not got[3].any()


def step(n: int = N_TOKENS) -> dict[str, Array]:
    """Tokens of two sequences; the second begins at token 100."""
    rng = np.random.default_rng(1)
    cells = 64 * BLOCK
    t = np.arange(n)
    return {
        "q": rng.standard_normal((n, N_HEAD, WIDTH)).astype(np.float32),
        "k": rng.standard_normal((cells, N_KV, WIDTH)).astype(np.float16).view(np.uint16),
        "v": rng.standard_normal((cells, N_KV, WIDTH)).astype(np.float16).view(np.uint16),
        "positions": np.where(t < 100, t, t - 80).astype(np.int32),
        "sequences": (t >= 100).astype(np.int32),
        "blocks": rng.permutation(64).reshape(2, 32).astype(np.int32),
    }


@pytest.fixture(scope="module")
def kernel() -> Any:
    made = compiled(attention(F16, F16, no_bias, False))

    def attend(
        given: dict[str, Array], tokens: slice = slice(None), parts: int = 1, window: int = 0
    ) -> Array:
        q = np.ascontiguousarray(given["q"][tokens])
        positions, sequences = given["positions"][tokens].copy(), given["sequences"][tokens].copy()
        out, units = np.full(q.shape, np.inf, np.float32), len(q) * N_KV
        for part in range(parts):
            begin, end = units * part // parts, units * (part + 1) // parts
            made(out, q, given["k"], given["v"], positions, sequences, given["blocks"], positions,
                 np.zeros(N_HEAD, np.float32), np.zeros((1, 1), np.float32), begin, end,
                 np.float32(0.2), np.float32(0), BLOCK, window, 0, True)  # fmt: skip
        return out

    return attend


@pytest.mark.parametrize("window", [0, 70])
def test_attention_of_a_token_has_the_same_bits_in_any_step(kernel: Any, window: int) -> None:
    given = step()
    every = kernel(given, window=window)
    assert np.isfinite(every).all()
    for parts in (2, 3, 7):
        np.testing.assert_array_equal(kernel(given, parts=parts, window=window), every)
    for t in (0, 1, 63, 64, 99, 100, 149):
        np.testing.assert_array_equal(kernel(given, slice(t, t + 1), window=window), every[t : t + 1])
    for cut in (5, 64, 110):
        tokens = slice(cut, cut + 31)
        np.testing.assert_array_equal(kernel(given, tokens, window=window), every[tokens])


def test_nan_of_an_unseen_cell_or_of_a_query_stays_there(kernel: Any) -> None:
    given = step()
    every = kernel(given)
    given["q"][70, 3] = np.nan
    for position in range(90, 256):  # of sequence 0: seen by tokens 90 to 99
        cell = given["blocks"][0, position // BLOCK] * BLOCK + position % BLOCK
        given["k"][cell] = given["v"][cell] = 0x7E00
    got = kernel(given)
    assert np.isnan(got[70, 3]).all()
    assert np.isnan(got[90:100]).all()
    got[70, 3] = every[70, 3]
    np.testing.assert_array_equal(got[:90], every[:90])
    np.testing.assert_array_equal(got[100:], every[100:])


def test_a_token_that_sees_no_cell_gets_zeros(kernel: Any) -> None:
    given = step(3)
    given["positions"][1] = -1
    got = kernel(given)
    assert not got[1].any()
    assert got[0].any()
    assert got[2].any()


def test_the_delta_rule_has_the_same_bits_however_a_text_is_cut() -> None:
    rng = np.random.default_rng(2)
    n, heads, groups, keys, values = 11, 4, 2, 36, 12
    run = compiled(gated_delta_net)
    q, k = (rng.standard_normal((n, groups, keys)).astype(np.float32) / 6 for _ in range(2))
    v = rng.standard_normal((n, heads, values)).astype(np.float32)
    decay, beta = (rng.uniform(0.1, 1, (n, heads, 1)).astype(np.float32) for _ in range(2))
    positions, sequences = np.arange(n, dtype=np.int32), np.ones(n, np.int32)

    def stepped(cuts: list[int], threads: int) -> tuple[Array, Array]:
        out, state = np.empty_like(v), np.full((2, heads, values, keys), np.nan, np.float32)
        units = heads * values
        for a, b in pairwise(cuts):
            once = (k[:, None], v[:, None], beta[:, None])  # one update in each token
            now = [one[a:b] for one in (q, *once[:2], decay, once[2], sequences, positions)]
            for i in range(threads):
                begin, end = units * i // threads, units * (i + 1) // threads
                run(out[a:b], state, *now, begin, end, np.float32(0.3), False)
        return out, state[1]

    wanted = stepped([0, n], 1)
    assert np.isfinite(wanted[1]).all()
    for cuts, threads in (([0, 1, 5, n], 1), ([0, n], 3), ([0, 7, n], 5)):
        for got, one in zip(stepped(cuts, threads), wanted, strict=True):
            np.testing.assert_array_equal(got, one)
