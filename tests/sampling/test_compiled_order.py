"""Rows sorted by compiled loops: the very order and prefixes that NumPy finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from graphml_cpu import row_order

from graphml.sampling import SamplingParams
from graphml.sampling.candidates import score_order
from graphml.sampling.candidates.candidates import Floats, all_candidates, shortest_prefix, softmax
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.chain.sampler import make_sampler

N = 20_000


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_order, "_lent", [])


def rows() -> list[Floats]:
    """Peaked, flat, of many equal numbers, with zeros of both signs and forbidden tokens."""
    numbers = np.random.default_rng(3)
    found = [(numbers.standard_normal(N) * scale).astype(np.float32) for scale in (3.0, 0.5, 1e-30, 1e30)]
    found.append(numbers.integers(-3, 4, N).astype(np.float32))
    found[-1][::7] *= np.float32(-0.0)
    found[0][numbers.integers(0, N, 99)] = -np.inf
    return found


@pytest.mark.parametrize("i", range(5))
def test_the_order_is_that_of_numpy(i: int, numpy_alone: None) -> None:
    row = rows()[i]
    wanted = np.lexsort((np.arange(N), -row))
    np.testing.assert_array_equal(row_order.descending(row), wanted)
    np.testing.assert_array_equal(score_order.descending(row), wanted)
    assert score_order.compiled(N) is None


@pytest.mark.parametrize(("mass", "least", "beyond"), [
    (0.95, 1, False), (0.95, 1, True), (0.5, 700, False), (1.0, 1, False), (0.0, 1, False), (2.0, 5, True),
])  # fmt: skip
def test_prefixes_are_those_of_numpy(mass: float, least: int, beyond: bool, numpy_alone: None) -> None:
    for row in rows():
        shares = softmax(all_candidates(row))
        wanted = shortest_prefix(row, shares, mass, least, beyond)
        score_order.lend(row_order)
        found = shortest_prefix(row, shares, mass, least, beyond)
        score_order._lent.clear()
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(row_order.prefix(row, shares, mass, least, beyond), wanted)


def test_a_sum_that_only_equals_the_mass_is_not_beyond_it() -> None:
    shares = np.full(N, 2.0**-15, np.float32)
    row = np.arange(N, dtype=np.float32)
    assert len(row_order.prefix(row, shares, 0.25, 1, False)) == 1 << 13
    assert len(row_order.prefix(row, shares, 0.25, 1, True)) == (1 << 13) + 1


@pytest.mark.parametrize("fields", [
    {"top_p": 0.97}, {"typical_p": 0.9}, {"xtc_probability": 1.0, "rng": "llama.cpp"},
    {"typical_p": 0.8, "rng": "llama.cpp"}, {"mirostat": 1}, {"top_k": 9000, "top_p": 0.99},
])  # fmt: skip
def test_samples_are_the_same_in_any_thread(fields: dict[str, object], numpy_alone: None) -> None:
    sampler = make_sampler(SamplingParams(temperature=0.9, **fields))  # type: ignore[arg-type]

    def tokens(row: Floats) -> list[int]:
        numbers = PeekableRandom(5)
        return [sampler.sample(row, [], numbers) for _ in range(6)]

    given = rows()[:2] * 4
    wanted = [tokens(row) for row in given]
    score_order.lend(row_order)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokens, given)) == wanted
