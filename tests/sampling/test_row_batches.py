"""Chains run over many rows at once: the very tokens of each row alone, by the same random numbers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphml_cpu import BACKEND

from graphml.backend import TopRowsDevice
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.batches.row_batches import MOST_K, TopRows, chain_of, sample_rows
from graphml.sampling.candidates.candidates import Floats, Indices, leading
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.chain.filter_order import CHAIN
from graphml.sampling.chain.sampler import make_sampler
from graphml.sampling.structured.packed_masks import masked_row, packed
from tests.looped import looped

DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
SETTINGS: list[dict[str, Any]] = [
    DEFAULTS,
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 0.7, "top_k": 64, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 50, "min_p": 0.2, "min_keep": 3},
    {"temperature": 1e-42, "top_k": 20},
    {**DEFAULTS, "samplers": "top_k;min_p;temperature;top_p"},
    {**DEFAULTS, "samplers": "top_k;temperature;top_p", "min_keep": 5},
]
MORE: list[dict[str, Any]] = [
    {"json_schema": {"type": "object"}},
    {"rng": "llama.cpp"},
    {"rng": "llama.cpp", "logit_bias": {2: -math.inf}},
    {"logit_bias": {2: -math.inf, 17: -math.inf, 30: -math.inf}},
    {"rng": "llama.cpp", "logit_bias": {30: 2.5, 3: -math.inf, 0: -1.0, 39: 100.0, 7: 3.4e38}},
    {"logit_bias": {30: 2.5, 3: -math.inf, 0: -1.0, 39: 1.0, 7: 3.4e38}},
    {"rng": "llama.cpp", "logit_bias": dict.fromkeys(range(0, 40, 3), 1.0)},
    {"logit_bias": {i: float(i % 3) for i in range(40)}},
]
"""What comes with a chain that is still run so."""


@pytest.fixture(scope="module", params=[1, 2])
def top_rows(request: pytest.FixtureRequest) -> Iterator[TopRows]:
    device = BACKEND.open(request.param)
    assert isinstance(device, TopRowsDevice)
    yield device.top_rows
    device.close()


def rows_of(n: int, count: int) -> Floats:
    numbers = np.random.default_rng(n)
    rows = numbers.standard_normal((count, n)) * numbers.choice([0.3, 1.0, 4.0], (count, 1))
    rows[1::5] = np.round(rows[1::5])  # many equal ones
    rows[2::5, : n // 2] = -np.inf
    found: Floats = rows.astype(np.float32)
    return found


@looped("n", [1, 5, 64, 700, 16385, 49152])
@looped("k", [1, 3, 64])
def test_the_top_k_is_that_of_each_row(top_rows: TopRows, n: int, k: int) -> None:
    k = min(k, n)
    rows = rows_of(n, 9)
    ids, tops, flaws = top_rows(rows, k)
    assert not flaws.any()
    for row, found, logits in zip(rows, ids, tops, strict=True):
        wanted: Indices = leading(row, k)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(logits, row[wanted])


def test_rows_apart_in_memory_and_rows_with_nan(top_rows: TopRows) -> None:
    rows = rows_of(3000, 6)
    rows[2, 5] = rows[4, 2999] = rows[5, 1500] = np.nan
    wide = np.zeros((6, 4096), np.float32)
    wide[:, :3000] = rows
    ids, _, flaws = top_rows(wide[:, :3000], 8)
    assert flaws.tolist() == [False, False, True, False, True, True]
    np.testing.assert_array_equal(ids[3], leading(rows[3], 8))


@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize("mixed", [False, True])
def test_tokens_are_those_of_each_row_alone(top_rows: TopRows, n: int, mixed: bool) -> None:
    rows = rows_of(n, 24)
    for params, wanted in alone(n, mixed):
        numbers = [PeekableRandom(i) for i in range(24)]
        given = list(zip(range(24), params, numbers, strict=True))
        for tokens in wanted:
            assert sample_rows(rows, given, top_rows) == dict(enumerate(tokens))


@functools.cache
def alone(n: int, mixed: bool) -> list[tuple[list[SamplingParams], list[list[int]]]]:
    """Params of each row, and what each row gives six times; numbers 0.9999 as large were found by that.

    It is the same for any number of threads.
    """
    rows, found = rows_of(n, 24), []
    for first in range(len(SETTINGS)):
        given = [SETTINGS[(first + i * mixed) % len(SETTINGS)] for i in range(len(rows))]
        params, numbers = [SamplingParams(**one) for one in given], [PeekableRandom(i) for i in range(24)]
        each = list(zip(params, rows, numbers, strict=True))
        times = [[make_sampler(one).sample(row, [], own) for one, row, own in each] for _ in range(6)]
        found.append((params, times))
    return found


@pytest.mark.parametrize("n", [40, 5003])
def test_tokens_behind_masks_are_those_of_each_masked_row_alone(top_rows: TopRows, n: int) -> None:
    rows = rows_of(n, 24)
    random = np.random.default_rng(5)
    shares = [0.002, 0.05, 0.5, 0.99]
    allowed = {row: random.random(n) < shares[row % 4] for row in range(24) if row % 5}
    for row, mask in allowed.items():
        if row % 3 == 0:
            mask[n - 9 :] = False
        mask[n // 2 + random.integers(n // 2 - 9)] = True  # where no row has -inf
    # Shorter than the rows where nothing behind is allowed, as the bits of a vocabulary with padding are.
    masks = {row: packed(mask[: n - 9] if row % 3 == 0 else mask) for row, mask in allowed.items()}
    for first, fields in enumerate(SETTINGS):
        params = SamplingParams(**fields)
        numbers = [PeekableRandom(first * 24 + i) for i in range(len(rows))]
        alone = [one.copy() for one in numbers]
        given = [(i, params, one) for i, one in enumerate(numbers)]
        found = sample_rows(rows, given, top_rows, masks)
        hidden = [masked_row(row, masks[i]) if i in masks else row for i, row in enumerate(rows)]
        wanted = [make_sampler(params).sample(row, [], own) for row, own in zip(hidden, alone, strict=True)]
        assert found == dict(enumerate(wanted))


@pytest.mark.parametrize("n", [40, 47, 5003])
@pytest.mark.parametrize("more", range(1, len(MORE)))
def test_tokens_of_biased_rows_and_by_llama_cpps_numbers_are_those_of_each_row(
    top_rows: TopRows, n: int, more: int
) -> None:
    rows, masks, choices = biased(n, more)
    for each, wanted, saved in choices:
        numbers = [PeekableRandom(100 * more + i) for i in range(24)]
        given = list(zip(range(24), each, numbers, strict=True))
        assert [sample_rows(rows, given, top_rows, masks) for _ in wanted] == wanted
        assert [one.saved() for one in numbers] == saved


@functools.cache
def biased(n: int, more: int) -> tuple[Floats, dict[int, Any], list[tuple[Any, ...]]]:
    """Rows, masks, and choices: params, what sampling each row by them gives twice, and the numbers then.

    It is the same for any number of threads.
    """
    rows, random = rows_of(n, 24), np.random.default_rng(n)
    rows[:, 7] = np.minimum(rows[:, 7], 1.0)
    masks = {row: packed(random.random(n) < 0.6) for row in range(0, 24, 7)}
    for bits in masks.values():
        bits[0] |= 1
    hidden = [masked_row(row, masks[i]) if i in masks else row for i, row in enumerate(rows)]
    all_params = [SamplingParams(**fields, **MORE[more]) for fields in SETTINGS]
    mixed = [all_params[i % len(SETTINGS)] for i in range(24)]
    choices = []
    for each in *([one] * 24 for one in all_params), mixed:
        numbers = [PeekableRandom(100 * more + i) for i in range(24)]
        wanted: list[dict[int, int]] = [{}, {}]
        for (i, one), tokens in itertools.product(enumerate(each), wanted):
            with contextlib.suppress(UsageError):  # no token is left, or a logit is no number
                tokens[i] = make_sampler(one).sample(hidden[i], [], numbers[i])
        choices.append((each, wanted, [one.saved() for one in numbers]))
    return rows, masks, choices


@looped("rng", ["graphml", "llama.cpp"])
def test_biased_rows_without_a_usable_logit_are_left_to_others(top_rows: TopRows, rng: str) -> None:
    rows = rows_of(600, 5)
    rows[0, 3], rows[1, 3], rows[2] = np.nan, np.inf, -np.inf
    rows[2, 3] = 1.0  # which the bias forbids
    numbers = [PeekableRandom(i) for i in range(5)]
    for bias in ({3: -math.inf}, {3: -math.inf, 8: 1.0}):
        params = SamplingParams(**DEFAULTS, logit_bias=bias, rng=rng)
        found = sample_rows(rows, [(i, params, one) for i, one in enumerate(numbers)], top_rows)
        assert list(found) == [3, 4]
    outside = SamplingParams(**DEFAULTS, logit_bias={600: 1.0}, rng=rng)
    assert sample_rows(rows, [(4, outside, numbers[4])], top_rows) == {}
    for one in numbers[:3]:
        assert one.saved() == PeekableRandom(one.seed).saved()


def test_a_row_with_nothing_allowed_is_left_to_others(top_rows: TopRows) -> None:
    given = [(i, SamplingParams(**DEFAULTS), PeekableRandom(i)) for i in range(2)]
    masks = {0: np.zeros(75, np.uint8)}
    assert list(sample_rows(rows_of(600, 2), given, top_rows, masks)) == [1]


def test_rows_that_are_no_numbers_keep_their_random_numbers(top_rows: TopRows) -> None:
    rows = rows_of(600, 4)
    rows[0, 3], rows[1, 599], rows[2] = np.nan, np.inf, -np.inf
    numbers = [PeekableRandom(i) for i in range(4)]
    given = [(i, SamplingParams(**DEFAULTS), one) for i, one in enumerate(numbers)]
    assert list(sample_rows(rows, given, top_rows)) == [3]
    for i, one in enumerate(numbers[:3]):
        assert one.peek(0) == PeekableRandom(i).peek(0)
    assert numbers[3].peek(0) == PeekableRandom(3).copy()._generator.random(2)[1]


def test_which_chains_are_run_so() -> None:
    names = [one.name for one in CHAIN if one.rows is not None]
    assert names == ["top_k", "top_p", "min_p", "temperature"]
    for fields in SETTINGS:
        assert chain_of(SamplingParams(**fields)) is not None
        for more in MORE:
            assert chain_of(SamplingParams(**fields, **more)) is not None
    others: list[dict[str, Any]] = [
        {}, {"top_k": MOST_K + 1}, {"top_p": 0.9}, {**DEFAULTS, "repeat_penalty": 1.1},
        {**DEFAULTS, "typical_p": 0.5}, {**DEFAULTS, "xtc_probability": 0.5}, {**DEFAULTS, "logprobs": 1},
        {**DEFAULTS, "dynatemp_range": 0.2}, {"mirostat": 2}, {"temperature": 0.0, "repeat_penalty": 1.1},
        {**DEFAULTS, "logit_bias": {1: 2.0}, "presence_penalty": 0.1},
    ]  # fmt: skip
    for fields in others:
        assert chain_of(SamplingParams(**{"temperature": 0.8, **fields})) is None, fields
