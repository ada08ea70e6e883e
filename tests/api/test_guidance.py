"""Classifier-free guidance: two sequences choose tokens together, alone and among others, in little room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.errors import UsageError
from graphml.sampling import PeekableRandom, sampler_of
from tests.api.tiny_models import log_softmax, stories_and
from tests.stories import STORIES

model = stories_and(["mamba-plain"], n_batch=32)
IDS = [1, *np.random.default_rng(3).integers(3, 75, 40).tolist()]
OTHER = [1, *np.random.default_rng(4).integers(3, 75, 9).tolist()]
HOT = SamplingParams(temperature=0.8, top_k=20)


def guided_alone(
    model: graphml.Model, ids: list[int], negative: list[int], scale: float, params: SamplingParams,
    count: int, seed: int = 0,
) -> list[int]:  # fmt: skip
    """Two sessions, one after the other, and NumPy."""
    numbers, made = PeekableRandom(seed), list[int]()
    with model.session(n_ctx=128) as one, model.session(n_ctx=128) as other:
        rows = [log_softmax(one.eval(ids)), log_softmax(other.eval(negative))]
        for _ in range(count):
            row = rows[1] + scale * (rows[0] - rows[1])
            token = sampler_of(params).sample(row.astype(np.float32), [*ids, *made], numbers)
            made.append(token)
            rows = [log_softmax(each.eval([token])) for each in (one, other)]
    return made


def test_drafts_that_are_asked_for_are_refused() -> None:
    refused = pytest.raises(UsageError, match="spec_type: guidance takes no drafts")
    with graphml.load(STORIES, "cpu", threads=1) as model, refused:
        model.guided(IDS, OTHER, 2.0, SamplingParams(spec_type="ngram"), 4)


@pytest.mark.parametrize(("scale", "params"), [(3.0, SamplingParams()), (0.5, HOT), (0.0, SamplingParams())])
def test_tokens_are_those_of_two_sessions(model: graphml.Model, scale: float, params: SamplingParams) -> None:
    expected = guided_alone(model, IDS, OTHER, scale, params, 12, seed=5)
    found = model.guided(IDS, OTHER, scale, params, 12, seed=5)
    assert found.tokens == expected
    assert found.n_prompt == len(IDS)
    plain = model.generate([OTHER if scale == 0.0 else IDS], params, 12, seed=5)[0].tokens
    assert (found.tokens == plain) == (scale == 0.0)


def test_without_a_negative_prompt_the_last_token_is_it(model: graphml.Model) -> None:
    expected = guided_alone(model, IDS, IDS[-1:], 2.0, SamplingParams(), 8)
    assert model.guided(IDS, None, 2.0, max_tokens=8).tokens == expected


@pytest.mark.parametrize("max_sequences", [1, 3, 8])
def test_many_share_an_engine_whatever_its_room(model: graphml.Model, max_sequences: int) -> None:
    """Even one where both of a pair never run at once; with others, and several continuations."""
    jobs = [(IDS, OTHER, 3.0), (OTHER, IDS, 2.0), (IDS[:20], [5], 1.5)]
    with model.engine(max_sequences=max_sequences, n_ctx=128) as engine:
        handles = [
            engine.submit(ids, None, 8, guidance_scale=scale, negative_prompt=other)
            for ids, other, scale in jobs
        ]
        plain = engine.submit(IDS, None, 8)
        several = engine.submit(IDS, HOT, 5, seed=1, n=2, guidance_scale=2.0, negative_prompt=OTHER)
        for (ids, other, scale), handle in zip(jobs, handles, strict=True):
            expected = guided_alone(model, ids, other, scale, SamplingParams(), 8)
            assert handle.result(60).tokens == expected
        assert plain.result(60).tokens == model.generate([IDS], None, 8)[0].tokens
        for i, one in enumerate(several.results(60)):
            assert one.tokens == guided_alone(model, IDS, OTHER, 2.0, HOT, 5, seed=1 + i)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_with_few_blocks_pairs_take_turns() -> None:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=32, kv="f32") as model:
        memory = 6 * 32 * 2 * 5 * 32 * 4
        with model.engine(memory, max_sequences=4, n_ctx=128) as engine:
            handles = [
                engine.submit(ids, None, 30, guidance_scale=2.0, negative_prompt=OTHER)
                for ids in (IDS, IDS[::-1])
            ]
            for ids, handle in zip((IDS, IDS[::-1]), handles, strict=True):
                expected = guided_alone(model, ids, OTHER, 2.0, SamplingParams(), 30)
                assert handle.result(60).tokens == expected
            assert engine.stats().blocks_used == 0


def test_both_share_steps_and_end_together(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        with engine.timeline() as timeline:
            ended = engine.submit(IDS[:10], None, 6, guidance_scale=2.0, negative_prompt=OTHER).result()
        assert ended.n_gen == 6
        assert sum(len(step.rows) == 2 for step in timeline.steps) >= 5
        full = engine.submit(IDS[:4], None, None, guidance_scale=2.0, negative_prompt=IDS).result(60)
        if full.stop_reason == "context":
            assert len(IDS) + full.n_gen == 64
        handle = engine.submit(IDS[:4], None, None, guidance_scale=2.0, negative_prompt=OTHER)
        handle.cancel()
        assert handle.result(60).stop_reason in ("cancel", "context", "end")
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_negative_prompts_are_shared_among_requests_of_equal_salt_only(model: graphml.Model) -> None:
    how: dict[str, Any] = {"guidance_scale": 2.0, "negative_prompt": IDS, "lora": []}
    found = []
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        for salt in (b"a", b"b", b"b"):
            handle = engine.submit(OTHER, None, 1, salt=salt, **how)
            handle.result(60)
            assert handle.sequences[0].guidance is not None
            found.append(handle.sequences[0].guidance.negative.n_cached > 0)
    assert found == [False, False, True]


def test_log_probabilities_are_those_of_the_combined_row(model: graphml.Model) -> None:
    params = SamplingParams(logprobs=1)
    with model.session(n_ctx=64) as one, model.session(n_ctx=64) as other:
        rows = [log_softmax(one.eval(IDS)), log_softmax(other.eval(OTHER))]
    row = log_softmax(rows[1] + 2.0 * (rows[0] - rows[1]))
    found = model.guided(IDS, OTHER, 2.0, params, 1)
    assert found.logprobs is not None
    assert found.logprobs[0].logprob == pytest.approx(row.max(), abs=1e-3)


def test_what_cannot_be_guided_is_refused(model: graphml.Model) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"guidance_scale": -1}, "guidance_scale: wanted a number from 0 to 100"),
        ({"guidance_scale": "x"}, "guidance_scale: wanted a number from 0 to 100"),
        ({"negative_prompt": [3]}, "guidance_scale: wanted another than 1 for a negative prompt"),
        ({"guidance_scale": 2, "negative_prompt": []}, "ids: wanted at least one"),
        ({"guidance_scale": 2, "negative_prompt": [10**6]}, "ids: wanted ids from 0"),
        ({"guidance_scale": 2, "negative_prompt": [3] * 64}, "prompt: wanted 1 to 63 ids"),
    ]
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        for given, told in wrong:
            with pytest.raises(UsageError, match=f"^{told}"):
                engine.submit(IDS[:5], None, 2, **given)
