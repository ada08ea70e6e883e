"""Denoising without a model: schedules, what is filled in first, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.loading.diffusion import Diffusion
from graphml.sampling import PeekableRandom, SamplingParams
from graphml.sampling.denoiser import Block, Denoiser, blocks_of, check_continued, check_denoised, n_filled

N_VOCAB, MASK = 12, 11
PLAIN = Diffusion(MASK, shifts=False, block=0)
Rows = NDArray[np.float32]


def logits_of(text: NDArray[np.int32], seed: int = 0) -> Rows:
    """Rows that every id of the text changes, as those of a model whose tokens see all others."""
    generator = np.random.default_rng([seed, *text.tolist()])
    return 2 * generator.standard_normal((len(text), N_VOCAB), np.float32)


def denoised(
    length: int,
    model: Diffusion = PLAIN,
    seed: int = 3,
    each: Callable[[Denoiser], Any] = id,
    **settings: Any,
) -> Denoiser:
    """An answer that is done. each: called behind each step."""
    answer = Denoiser([1, 2, 3], length, model, SamplingParams(**settings), PeekableRandom(seed))
    while not answer.done:
        answer.take(logits_of(answer.text)[answer.rows])
        each(answer)
    return answer


@pytest.mark.parametrize("how", ["origin", "entropy", "margin", "random", "confidence", 0, 4])
@pytest.mark.parametrize(
    "schedule", [{}, {"diffusion_steps": 5}, {"diffusion_block_length": 4}, {"diffusion_eps": 0.3}]
)
@pytest.mark.parametrize("more", [{}, {"temperature": 0.9, "rng": "llama.cpp"}, {"diffusion_alg_temp": 0.5}])
def test_an_answer_is_filled_in_and_nothing_is_changed_again(
    how: object, schedule: dict[str, Any], more: dict[str, Any]
) -> None:
    seen: list[NDArray[np.int32]] = []
    answer = denoised(
        14, diffusion_algorithm=how, each=lambda one: seen.append(one.answer.copy()), **schedule, **more
    )
    assert answer.n_steps == len(seen) <= answer.most_steps == schedule.get("diffusion_steps", 128)
    assert answer.n_settled == 14
    assert MASK not in answer.answer
    for before, after in itertools.pairwise(seen):
        known = before != MASK
        assert (after[known] == before[known]).all()


def test_steps_fill_in_what_the_schedule_says() -> None:
    block = Block(0, 10, 4)
    assert [n_filled(block, step, 10, 10) for step in range(3)] == [3, 3, 2]
    assert n_filled(block, 3, 4, 10) == 4  # all that is left
    times = Block(0, 100, 4, eps=0.2)
    assert [n_filled(times, step, 100, 100) for step in range(4)] == [19, 25, 33, 100]


def test_blocks_share_the_steps() -> None:
    params = SamplingParams(diffusion_steps=8, diffusion_block_length=4)
    assert blocks_of(3, 13, params, PLAIN) == [Block(3, 7, 3), Block(7, 11, 3), Block(11, 13, 2)]
    by_default = Diffusion(MASK, shifts=False, block=5)
    assert [block.end for block in blocks_of(0, 12, SamplingParams(), by_default)] == [5, 10, 12]
    eps = SamplingParams(diffusion_eps=0.1, diffusion_steps=7)
    assert blocks_of(0, 12, eps, by_default) == [Block(0, 12, 7, 0.1)]
    with pytest.raises(UsageError, match=r"diffusion_steps: wanted at least 3, .* got 2"):
        blocks_of(3, 13, SamplingParams(diffusion_steps=2, diffusion_block_length=4), PLAIN)


def test_blocks_are_settled_in_turn() -> None:
    ends: list[int] = []
    denoised(12, diffusion_block_length=4, diffusion_steps=6, each=lambda one: ends.append(one.n_settled))
    assert ends[1::2] == [4, 8, 12]


def test_steps_that_change_nothing_are_not_taken() -> None:
    """Only where llama.cpp draws a number in them."""
    assert denoised(4, diffusion_steps=60, diffusion_eps=0.001).n_steps <= 5
    assert denoised(4, diffusion_steps=60, diffusion_eps=0.001, temperature=1.0).n_steps <= 5
    exact = denoised(4, diffusion_steps=60, diffusion_eps=0.001, temperature=1.0, rng="llama.cpp")
    assert exact.n_steps == 60


def filled_first(how: str, **settings: Any) -> int:
    """Which of three positions is filled in by the first of three steps."""
    rows = np.full((3, N_VOCAB), -20, np.float32)
    rows[0, :2] = np.log([0.6, 0.4])  # certain by neither measure
    rows[1, :5] = np.log([0.55, 0.12, 0.11, 0.11, 0.11])  # the largest margin, and entropy
    rows[2, :2] = np.log([0.61, 0.39])  # the largest probability, and the least entropy
    answer = Denoiser(
        [1], 3, PLAIN, SamplingParams(diffusion_algorithm=how, diffusion_block_length=3, diffusion_steps=3,
                                      **settings), PeekableRandom(0),
    )  # fmt: skip
    answer.take(rows)
    return int(np.flatnonzero(answer.answer != MASK)[0])


def test_the_algorithm_says_what_is_filled_in_first() -> None:
    assert [filled_first(how) for how in ("confidence", "margin", "entropy")] == [2, 1, 2]
    assert filled_first("entropy", rng="llama.cpp") == 1  # whose example takes the most uncertain


def test_logits_may_be_those_of_the_row_before() -> None:
    answer = Denoiser([1, 2], 3, Diffusion(MASK, True, 0), SamplingParams(), PeekableRandom(0))
    assert answer.rows.tolist() == [1, 2, 3]
    assert Denoiser([1, 2], 3, PLAIN, SamplingParams(), PeekableRandom(0)).rows.tolist() == [2, 3, 4]


def test_guidance_evaluates_the_text_without_its_prompt_too() -> None:
    params = SamplingParams(diffusion_cfg_scale=1.0, diffusion_steps=1)
    answer = Denoiser([1, 2], 1, PLAIN, params, PeekableRandom(0))
    assert answer.text.tolist() == [1, 2, MASK]
    rows = np.zeros((1, N_VOCAB), np.float32)
    rows[0, [4, 5]] = 3.0, 2.5
    answer.take(rows)
    assert answer.text.tolist() == [MASK, MASK, MASK]
    assert not answer.done
    without = np.zeros((1, N_VOCAB), np.float32)
    without[0, 4] = 2.0
    answer.take(without)  # 2 * 3 - 2 is less than 2 * 2.5
    assert answer.answer.tolist() == [5]


def test_the_last_step_takes_another_token_than_the_mask() -> None:
    rows = np.zeros((2, N_VOCAB), np.float32)
    rows[:, MASK], rows[:, 7] = 9.0, 1.0
    params = SamplingParams(diffusion_steps=2, diffusion_block_length=2)
    answer = Denoiser([1], 2, PLAIN, params, PeekableRandom(0))
    answer.take(rows)
    assert answer.answer.tolist() == [MASK, MASK]
    answer.take(rows[: len(answer.rows)])
    assert answer.answer.tolist() == [7, 7]


def test_filters_choose_among_candidates() -> None:
    rows = np.zeros((1, N_VOCAB), np.float32)
    rows[0, [4, 5]] = 2.0, 1.9
    params = SamplingParams(diffusion_steps=1, logit_bias={4: -1.0})
    answer = Denoiser([1], 1, PLAIN, params, PeekableRandom(0))
    answer.take(rows)
    assert answer.answer.tolist() == [5]
    wild = [denoised(9, temperature=5.0, top_k=1, seed=seed).answer.tolist() for seed in range(3)]
    assert wild[0] == wild[1] == wild[2]


def test_an_answer_of_no_tokens_is_done() -> None:
    for settings in ({}, {"diffusion_block_length": 4}):
        answer = denoised(0, **settings)
        assert (answer.n_settled, answer.n_steps) == (0, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'root ::= "a"'}, {"json_schema": "{}"}, {"choices": ("a",)}, {"begins_with": "a"},
        {"reasoning_budget": 4}, {"banned_strings": ("x",)}, {"function": lambda ids, logits, seen: logits},
        {"repeat_penalty": 1.1}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5},
        {"dry_multiplier": 0.5}, {"mirostat": 2}, {"adaptive_target": 0.4}, {"logprobs": 0},
        {"prompt_logprobs": 2}, {"spec_type": "ngram"},
    ],
)  # fmt: skip
def test_settings_that_follow_a_text_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(settings))}: a diffusion model"):
        check_denoised(SamplingParams(**settings))
    check_denoised(SamplingParams(temperature=1.0, top_k=4, min_p=0.1, stop=("x",), logit_bias={3: 1.0}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 9), ("block_length", 4), ("eps", 0.1), ("algorithm", "margin"), ("alg_temp", 1.0),
     ("cfg_scale", 2.0)],
)  # fmt: skip
def test_settings_of_diffusion_models_are_refused_elsewhere(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"diffusion_{name}: wanted a diffusion model"):
        check_continued(SamplingParams(**{f"diffusion_{name}": value}))  # type: ignore[arg-type]
    check_continued(SamplingParams(temperature=1.0))


def test_a_schedule_is_one_or_the_other() -> None:
    with pytest.raises(UsageError, match="diffusion_eps: wanted no diffusion_block_length"):
        SamplingParams(diffusion_eps=0.1, diffusion_block_length=4)


@pytest.mark.parametrize("wrong", ["", "best", "5", 5, -1, True, None, 1.0])
def test_an_algorithm_is_a_word_or_its_number(wrong: object) -> None:
    assert SamplingParams(diffusion_algorithm="2").diffusion_algorithm == "margin"
    with pytest.raises(UsageError, match="diffusion_algorithm: wanted one of origin, entropy, margin"):
        SamplingParams(diffusion_algorithm=wrong)  # type: ignore[arg-type]


def filled_in_steps(length: int, n_steps: int, seed: int = 0, **settings: Any) -> list[set[int]]:
    """Which positions each step of a block fills in, whose positions have confidences that fall."""
    params = SamplingParams(diffusion_block_length=length, diffusion_steps=n_steps, **settings)
    answer = Denoiser([1], length, PLAIN, params, PeekableRandom(seed))
    rows = np.zeros((length, N_VOCAB), np.float32)
    rows[:, 3] = np.linspace(4, 2, length, dtype=np.float32)
    known, steps = set[int](), list[set[int]]()
    while not answer.done:
        answer.take(rows[answer.rows - 1])
        now = set(np.flatnonzero(answer.answer != MASK).tolist())
        steps.append(now - known)
        known = now
    return steps


def test_the_choice_among_positions_has_a_temperature() -> None:
    in_order = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert filled_in_steps(8, 4) == filled_in_steps(8, 4, diffusion_alg_temp=1e-6) == in_order
    for rng in ("graphml", "llama.cpp"):
        hot = [filled_in_steps(8, 4, seed, diffusion_alg_temp=100.0, rng=rng) for seed in range(9)]
        assert all(len(step) == 2 for steps in hot for step in steps)  # none is chosen twice
        assert len({str(steps) for steps in hot}) > 4


def test_of_equals_the_first_are_filled_in_first() -> None:
    params = SamplingParams(diffusion_block_length=60, diffusion_steps=2)
    answer = Denoiser([1], 60, PLAIN, params, PeekableRandom(0))
    rows = np.zeros((60, N_VOCAB), np.float32)
    rows[:, 3] = np.tile(np.array([1, 3], np.float32), 30)
    answer.take(rows)
    assert np.flatnonzero(answer.answer != MASK).tolist() == list(range(1, 60, 2))
    params = SamplingParams(diffusion_block_length=60, diffusion_steps=4)
    answer = Denoiser([1], 60, PLAIN, params, PeekableRandom(0))
    answer.take(rows)
    assert np.flatnonzero(answer.answer != MASK).tolist() == list(range(1, 30, 2))


@pytest.mark.parametrize("more", [{}, {"xtc_probability": 1.0}, {"typical_p": 0.3}, {"temperature": 0.0}])
def test_without_a_temperature_the_likeliest_is_taken_whatever_the_filters(more: dict[str, Any]) -> None:
    greedy = denoised(6, diffusion_steps=3)
    assert denoised(6, diffusion_steps=3, **more).answer.tolist() == greedy.answer.tolist()


def test_the_last_step_gives_no_forbidden_token() -> None:
    """Where the mask is the likeliest, another token takes its place."""
    answer = Denoiser(
        [1], 2, PLAIN, SamplingParams(logit_bias={7: -np.inf}, diffusion_steps=1), PeekableRandom(0)
    )
    rows = np.zeros((2, N_VOCAB), np.float32)
    rows[:, [MASK, 7, 4]] = 9, 8, 7
    answer.take(rows)
    assert answer.answer.tolist() == [4, 4]
