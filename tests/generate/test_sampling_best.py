"""Tokens chosen among the best of a row are those that are chosen of the whole row, by the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphml.generate.sampling import Best, Foreseen, SamplingParams, draw_settings, make_sampler, may_decide
from graphml.generate.sampling.candidates import Floats, leading
from graphml.ir.ops.sampling import draw

SIZE, N_BEST = 1500, 64
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
NEVER = [
    SamplingParams(temperature=1.0),
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


def best_of(row: Floats, error: float = 0.0) -> Best:
    """What a device gives; error: of its sum, relatively."""
    ids = leading(row, N_BEST).astype(np.int32)
    top = float(row.max())
    total = np.exp(row.astype(np.float64) - top).sum() * (1 + error)
    return Best(ids, row[ids], float(np.float32(np.log(total) + top)), len(row))


@pytest.mark.parametrize("params", ALWAYS + OFTEN, ids=told)
def test_the_same_token_is_drawn_by_the_same_numbers(params: SamplingParams) -> None:
    sampler, decided, asked = make_sampler(params), 0, 0
    for row in rows().values():
        for seed in range(20):
            whole, part = np.random.default_rng(seed), Foreseen(seed)
            wanted = sampler.sample(row, (), whole)
            found = sampler.sample_best(best_of(row, (-3e-6, 0.0, 3e-6)[seed % 3]), part)
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
    assert [one.sample_best(best_of(row), Foreseen(1)) is None for one in chosen] == [True, False]


@pytest.mark.parametrize("params", NEVER, ids=told)
def test_what_needs_the_row_is_not_guessed(params: SamplingParams) -> None:
    assert not may_decide(params, N_BEST)
    assert make_sampler(params).sample_best(best_of(rows()["usual"]), Foreseen(1)) is None
    assert draw_settings(params, 0.5, N_BEST) is None


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
def test_rows_with_flaws_are_left_to_the_sampler_that_tells(flaw: float) -> None:
    best = replace(best_of(rows()["usual"]), log_sum=flaw)
    assert make_sampler(SamplingParams()).sample_best(best, Foreseen(1)) is None


@pytest.mark.parametrize("params", ALWAYS + OFTEN, ids=told)
def test_what_a_device_draws_is_nearly_always_that(params: SamplingParams) -> None:
    hits, asked = 0, 0
    for row in rows().values():
        for seed in range(20):
            best, numbers = best_of(row), Foreseen(seed)
            settings = draw_settings(params, numbers.ahead(0), N_BEST)
            wanted = make_sampler(params).sample_best(best, numbers)
            if settings is None or wanted is None:
                continue
            values = best.ids, best.logits, np.float32([best.log_sum]), np.float32(settings)
            assert draw.reference is not None
            hits += int(draw.reference([value[None] for value in values], {})[0]) == wanted
            asked += 1
    assert asked == hits or (asked > 100 and hits >= 0.99 * asked)


def test_numbers_can_be_foreseen() -> None:
    numbers, plain = Foreseen(5), np.random.default_rng(5)
    wanted = [plain.random() for _ in range(5)]
    assert [numbers.ahead(2), numbers.random(), numbers.ahead(0)] == [wanted[2], wanted[0], wanted[1]]
    assert [numbers.random() for _ in range(4)] == wanted[1:]
