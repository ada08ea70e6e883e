"""Tokens sampled from the top k of a row are those sampled from the whole row, by the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphml.ir.ops.sampling import sample_row, sample_token
from graphml.sampling import (
    DeviceSample,
    DeviceSettings,
    PeekableRandom,
    SamplingParams,
    TopK,
    device_samples_row,
    device_settings,
    make_sampler,
    samples_without_row,
)
from graphml.sampling.candidates.candidates import Floats, leading
from graphml.sampling.chain.top_k_sampling import device_sample

SIZE, TOP_K = 1500, 64
ALWAYS = [
    SamplingParams(),
    SamplingParams(top_p=0.3, top_k=5),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=1.3, top_k=64, top_p=0.8, min_p=0.02),
    SamplingParams(temperature=1.0, top_k=20, typical_p=0.6),
    SamplingParams(temperature=0.8, top_k=30, dynatemp_range=0.4, min_keep=3),
]
OFTEN = [
    SamplingParams(temperature=1.0, top_p=0.0),
    SamplingParams(temperature=0.9, top_p=0.7),
    SamplingParams(temperature=1e-40, top_p=0.9, min_p=0.1),
    SamplingParams(temperature=1.0, top_p=0.5, min_keep=7),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=2.0, min_p=0.5, dynatemp_range=0.5),
    SamplingParams(temperature=1.0, min_p=1.0, min_keep=9),
]
OF_ROW = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.5, min_keep=4),
    SamplingParams(temperature=1e-3),
    SamplingParams(temperature=1.3, min_p=0.05),
    SamplingParams(temperature=0.7, min_p=1.0),
]
NEVER = [
    SamplingParams(temperature=1.0, dynatemp_range=0.5),
    SamplingParams(temperature=1e-4),
    SamplingParams(repeat_penalty=1.1),
    SamplingParams(logit_bias={3: 1.0}),
    SamplingParams(temperature=1.0, top_k=65),
    SamplingParams(temperature=1.0, typical_p=0.5),
]


def told(params: SamplingParams) -> str:
    """The settings that are not at their defaults."""
    values, usual = vars(params), vars(SamplingParams())
    return ",".join(f"{name}={value}" for name, value in values.items() if value != usual[name])


def rows() -> dict[str, Floats]:
    random = np.random.default_rng(3)
    usual = random.standard_normal(SIZE).astype(np.float32) * 4
    ties = np.round(usual * 2) / 2
    forbidden = usual.copy()
    forbidden[::2] = -np.inf
    almost = np.full(SIZE, -np.inf, np.float32)
    almost[[7, 900, 20]] = 1.0, 1.0, 0.5
    zeros = np.zeros(SIZE, np.float32)
    zeros[::3] = -0.0
    steps = -np.arange(SIZE, dtype=np.float32)[::-1] * 0.05
    return {
        "usual": usual,
        "sharp": usual * 5,
        "far": usual + 500,
        "ties": ties,
        "forbidden": forbidden,
        "almost all forbidden": almost,
        "equal": zeros,
        "last are best": steps,
        "tenths": np.log(np.repeat(np.float32([0.1, 1e-9]), [10, SIZE - 10])),
    }


def top_k_of(row: Floats, error: float = 0.0) -> TopK:
    """What a device gives; error: of its sum, relatively."""
    ids = leading(row, TOP_K).astype(np.int32)
    top = float(row.max())
    total = np.exp(row.astype(np.float64) - top).sum() * (1 + error)
    return TopK(ids, row[ids], float(np.float32(np.log(total) + top)), len(row))


@pytest.mark.parametrize("params", ALWAYS + OFTEN, ids=told)
def test_the_same_token_is_sampled_by_the_same_numbers(params: SamplingParams) -> None:
    sampler, decided, asked = make_sampler(params), 0, 0
    for row in rows().values():
        for seed in range(20):
            whole, part = np.random.default_rng(seed), PeekableRandom(seed)
            wanted = sampler.sample(row, (), whole)
            found = sampler.sample_top_k(top_k_of(row, (-3e-6, 0.0, 3e-6)[seed % 3]), part)
            asked += 1
            if found is None:
                whole = np.random.default_rng(seed)
            else:
                decided += 1
                assert found == wanted
            assert part.random() == whole.random()
    assert decided == asked if params in ALWAYS else decided > asked // 4


def test_edges_between_tokens_are_left_to_the_whole_row() -> None:
    """Ten equal tokens: at 0.3 the sum of three decides, to the last bit."""
    row = rows()["tenths"]
    chosen = [make_sampler(SamplingParams(temperature=1.0, top_p=p)) for p in (0.3, 0.3 + 1e-3)]
    assert [one.sample_top_k(top_k_of(row), PeekableRandom(1)) is None for one in chosen] == [True, False]


@pytest.mark.parametrize("params", NEVER, ids=told)
def test_what_needs_the_row_is_not_guessed(params: SamplingParams) -> None:
    assert not samples_without_row(params, TOP_K)
    assert make_sampler(params).sample_top_k(top_k_of(rows()["usual"]), PeekableRandom(1)) is None
    assert device_settings(params, 0.5, TOP_K) is None


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
def test_rows_with_flaws_are_left_to_the_sampler_that_tells(flaw: float) -> None:
    top = replace(top_k_of(rows()["usual"]), log_sum=flaw)
    assert make_sampler(SamplingParams()).sample_top_k(top, PeekableRandom(1)) is None


def sampled_by_device(row: Floats, top: TopK, settings: DeviceSettings) -> tuple[int, float, float]:
    """What op `sample_token` gives of a row: an id, and the shares before it and with it."""
    assert sample_token.reference is not None
    assert sample_row.reference is not None
    logits, given = top.logits[None], np.float32(settings)[None]
    told = sample_row.reference([row[None], logits, given], {})
    found = sample_token.reference([top.ids[None], logits, told, given], {})
    return int(found[0]), float(told[0, 2]), float(told[0, 3])


@pytest.mark.parametrize("params", ALWAYS + OFTEN, ids=told)
def test_a_device_samples_nearly_always_the_same(params: SamplingParams) -> None:
    hits, asked = 0, 0
    for row in rows().values():
        for seed in range(20):
            top, numbers = top_k_of(row), PeekableRandom(seed)
            settings = device_settings(params, numbers.peek(0), TOP_K)
            wanted = make_sampler(params).sample_top_k(top, numbers)
            if settings is None or wanted is None or device_samples_row(params):
                continue
            hits += sampled_by_device(row, top, settings)[0] == wanted
            asked += 1
    assert asked == hits or (asked > 100 and hits >= 0.99 * asked)


@pytest.mark.parametrize("params", OF_ROW, ids=told)
@pytest.mark.parametrize("n_known", [1, TOP_K])
def test_what_a_device_drew_of_a_row_is_taken(params: SamplingParams, n_known: int) -> None:
    """It adds up a little otherwise; of the row itself nothing but that is known."""
    sampler, decided = make_sampler(params), 0
    for row in rows().values():
        for seed in range(20):
            numbers, whole = PeekableRandom(seed), np.random.default_rng(seed)
            settings = device_settings(params, numbers.peek(0), TOP_K)
            assert settings is not None
            top = top_k_of(row)
            found, before, upto = sampled_by_device(row, top, settings)
            error = (-2e-6, 0.0, 2e-6)[seed % 3]
            top = replace(
                top, ids=top.ids[:n_known], logits=top.logits[:n_known],
                sampled=DeviceSample(found, before + error, upto + error, settings),
            )  # fmt: skip
            wanted, token = sampler.sample(row, (), whole), sampler.sample_top_k(top, numbers)
            if token is None:
                assert numbers.random() == np.random.default_rng(seed).random()
                continue
            assert token == wanted
            assert numbers.random() == whole.random()
            decided += 1
    assert decided >= 100


def test_numbers_near_an_edge_of_the_row_are_left_to_the_row() -> None:
    """A quarter for each of four: at both sides of an edge nothing is said, a little further on it is."""
    row, params = np.zeros(4, np.float32), SamplingParams(temperature=1.0)
    known = TopK(np.int32([0]), np.zeros(1, np.float32), float(np.log(4.0)), 4)
    found = []
    for number in (0.0, 2e-5, 0.25 - 2e-5, 0.25 - 1e-6, 0.25, 0.25 + 1e-6, 0.25 + 2e-5, 0.9):
        settings = device_settings(params, number, TOP_K)
        assert settings is not None
        sampled = DeviceSample(*sampled_by_device(row, known, settings), settings)
        found.append(device_sample(params, replace(known, sampled=sampled), number))
    assert found == [None, 0, 0, None, None, None, 1, 3]


def test_only_what_was_sampled_by_the_same_settings_and_number_is_taken() -> None:
    row, params = rows()["usual"], SamplingParams(temperature=1.0)
    settings = device_settings(params, 0.5, TOP_K)
    assert settings is not None
    top = top_k_of(row)
    top = replace(top, sampled=DeviceSample(*sampled_by_device(row, top, settings), settings))
    assert device_sample(params, top, 0.5) is not None
    others = [SamplingParams(), replace(params, temperature=0.9), replace(params, min_p=0.01)]
    others += [replace(params, top_k=4), replace(params, logit_bias={1: 1.0})]
    assert [device_sample(one, top, 0.5) for one in others] == [None] * 5
    assert device_sample(params, top, 0.50001) is None
    assert device_sample(params, replace(top, log_sum=np.nan), 0.5) is None


def test_numbers_can_be_peeked_at() -> None:
    numbers, plain = PeekableRandom(5), np.random.default_rng(5)
    wanted = [plain.random() for _ in range(5)]
    assert [numbers.peek(2), numbers.random(), numbers.peek(0)] == [wanted[2], wanted[0], wanted[1]]
    assert [numbers.random() for _ in range(4)] == wanted[1:]
