"""Log-probabilities of tokens and prompts: those of the rows of logits, alone, in batches and in engines."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.api.perplexity import perplexity
from graphml.errors import UsageError, WeightsError
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.prompt_scores import MOST_ROWS, keep_scores
from graphml.runtime.sessions.pinned import Room
from graphml.sampling import sampler_of
from graphml.sampling.candidates.logprobs import TokenLogprobs, of_row
from tests.api.tiny_models import log_softmax, stories_and
from tests.stories import STORIES

model = stories_and(["mamba-plain"], n_batch=96)
IDS = [1, *np.random.default_rng(3).integers(3, 75, 89).tolist()]
ASKED = SamplingParams(logprobs=3, prompt_logprobs=2)
SAMPLED = SamplingParams(temperature=1.5, top_k=30, top_p=0.9, logprobs=3)


def check(found: TokenLogprobs | None, row: Any, token: int, n_top: int, near: float = 1e-4) -> None:
    """Against NumPy, by a row of logits."""
    assert found is not None
    expected = log_softmax(row)
    assert found.id == token
    assert found.logprob == pytest.approx(expected[token], abs=near)
    lowest, highest = ((row > row[token] + off).sum() for off in (near, -near))
    assert lowest < found.rank <= highest + 1
    assert found.entropy == pytest.approx(-(np.exp(expected) * expected).sum(), abs=10 * near)
    assert [one.id for one in found.top] == np.argsort(-row, kind="stable")[:n_top].tolist()
    values = [one.logprob for one in found.top]
    assert values == pytest.approx(np.sort(expected)[::-1][:n_top].tolist(), abs=near)


def rows_of(model: graphml.Model, ids: list[int]) -> Any:
    with model.session(n_ctx=128) as session:
        return session.eval(ids, all_logits=True)


def near(one: list[TokenLogprobs] | None, other: list[TokenLogprobs]) -> bool:
    assert one is not None
    assert [a.id for a in one] == [b.id for b in other]
    return all(abs(a.logprob - b.logprob) < 1e-4 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("params", [ASKED, SAMPLED], ids=["greedy", "sampled"])
def test_a_sessions_tokens_and_prompt_have_those_of_the_rows(
    model: graphml.Model, params: SamplingParams
) -> None:
    with model.session(n_ctx=128, seed=4) as session:
        tokens = list(session.generate(IDS[:20], params, 8))
        scores, of_prompt, made = session.logprobs, session.prompt_logprobs, session.generated
    rows = rows_of(model, [*IDS[:20], *made])
    assert [token.logprobs for token in tokens] == scores
    assert len(scores) == 8
    for i, (one, token) in enumerate(zip(scores, made, strict=True)):
        check(one, rows[19 + i], token, 3)
    if params.prompt_logprobs is None:
        assert of_prompt == []
    else:
        assert of_prompt[0] is None
        assert len(of_prompt) == 20
        for i, one in enumerate(of_prompt[1:]):
            check(one, rows[i], IDS[i + 1], 2)


def test_a_prompt_that_goes_on_is_scored_from_where_the_session_was(model: graphml.Model) -> None:
    with model.session(n_ctx=128) as session:
        session.eval(IDS[:7])
        list(session.generate(IDS[7:20], ASKED, 1))
        found = session.prompt_logprobs
    assert len(found) == 20
    assert found[:7] == [None] * 7
    rows = rows_of(model, IDS[:20])
    for i in range(7, 20):
        check(found[i], rows[i - 1], IDS[i], 2)


def test_nothing_is_there_unless_it_is_asked_for(model: graphml.Model) -> None:
    with model.session(n_ctx=128) as session:
        (token,) = session.generate(IDS[:5], max_tokens=1)
        assert (token.logprob, token.rank, token.entropy, token.top_logprobs) == (None, None, None, ())
        assert session.logprobs == session.prompt_logprobs == []
        (token,) = session.generate([3], SamplingParams(logprobs=0), 1)
        assert token.logprob is not None
        assert token.rank == 1
        assert token.top_logprobs == ()
    (result,) = model.generate([IDS[:5]], None, 2)
    assert (result.logprobs, result.prompt_logprobs, result.cumulative_logprob) == (None, None, None)


def test_it_is_what_perplexity_says() -> None:
    with graphml.load(STORIES, "cpu", threads=1, kv="f32") as model, model.session(n_ctx=64) as session:
        ids = model.encode("Once upon a time there was a dog. He liked to run in the park. " * 6)[:128]
        last = list(perplexity(session, ids, 64))[-1]
        losses = []
        for at in (0, 64):
            session.rewind(0)
            list(session.generate(ids[at : at + 64], ASKED, 0))
            losses += [-one.logprob for one in session.prompt_logprobs[33:] if one is not None]
    assert len(losses) == last.count
    assert math.exp(np.mean(losses)) == pytest.approx(last.value, rel=1e-5)


def test_requests_of_an_engine_have_those_of_a_session(model: graphml.Model) -> None:
    """Beside one that asks for nothing; a prompt of more rows than a step scores, computed before."""
    assert len(IDS) > MOST_ROWS
    plain = SamplingParams()
    with model.session(n_ctx=128) as session:
        list(session.generate(IDS, ASKED, 6))
        scores, of_prompt = session.logprobs, session.prompt_logprobs
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        assert engine.submit(IDS, plain, 6).result().logprobs is None
        asked = [ASKED, plain, ASKED, SamplingParams(logprobs=3), SamplingParams(prompt_logprobs=0)]
        handles = [engine.submit(IDS, params, 6) for params in asked]
        results = [handle.result() for handle in handles]
        tokens = list(handles[0])
    assert [one.tokens for one in results] == [[one.id for one in scores]] * 5
    assert [one.n_cached > 0 for one in results] == [False, True, False, True, False]
    for params, one in zip(asked, results, strict=True):
        assert one.logprobs is None if params.logprobs is None else near(one.logprobs, scores)
        if params.prompt_logprobs is None:
            assert one.prompt_logprobs is None
            continue
        assert one.prompt_logprobs is not None
        assert one.prompt_logprobs[0] is None
        assert near([x for x in one.prompt_logprobs if x], [x for x in of_prompt if x])
    assert [token.logprobs for token in tokens] == results[0].logprobs
    total = results[0].cumulative_logprob
    assert total == pytest.approx(sum(one.logprob for one in scores), abs=1e-3)


def test_continuations_share_their_prompts_rows(model: graphml.Model) -> None:
    params = SamplingParams(temperature=1.0, logprobs=0, prompt_logprobs=0)
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        with engine.timeline() as timeline:
            results = engine.submit(IDS[:40], params, 3, seed=1, n=3).results()
        computed = sum(rows.count for step in timeline.steps for rows in step.rows)
    assert computed < 2 * 40 + 3 * 3
    for one in results:
        assert one.prompt_logprobs == results[0].prompt_logprobs
        assert one.prompt_logprobs is not None
        assert len(one.prompt_logprobs) == 40
    rows = rows_of(model, [*IDS[:40], *results[2].tokens])
    for i, one in enumerate(results[2].logprobs or ()):
        check(one, rows[39 + i], results[2].tokens[i], 0)


def test_a_prompt_is_scored_where_no_token_is_wanted(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        one, *others = (engine.submit(IDS[:20], ASKED, most, n=2).results(60) for most in (1, 0))
        assert [result.tokens for result in others[0]] == [[], []]
        assert {result.stop_reason for result in others[0]} == {"length"}
        for result in others[0]:
            assert result.prompt_logprobs is not None
            assert result.prompt_logprobs == one[0].prompt_logprobs
            assert result.logprobs == []
        assert engine.submit(IDS[:1], ASKED, 0).result(60).prompt_logprobs == [None]
        assert engine.stats().blocks_used == 0


def test_preempted_requests_keep_theirs() -> None:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=32, kv="f32") as model:
        alone = model.generate([IDS[:60], IDS[5:65]], ASKED, 60)
        blocks = 5 * 32 * 2 * 5 * 32 * 4  # five blocks of 32 tokens; see the number of preemptions
        with model.engine(blocks, max_sequences=2, n_ctx=128) as engine:
            with model.executor.lock:  # no step runs before both are there
                handles = [engine.submit(ids, ASKED, 60) for ids in (IDS[:60], IDS[5:65])]
            results = [one.result() for one in handles]
            assert engine.stats().n_preempted
    for one, other in zip(results, alone, strict=True):
        assert one.tokens == other.tokens
        assert near(one.logprobs, other.logprobs or [])
        assert [x.id for x in one.prompt_logprobs or [] if x] == [
            x.id for x in other.prompt_logprobs or [] if x
        ]


def test_sequences_of_a_batch_have_theirs(model: graphml.Model) -> None:
    with model.batch(2, n_ctx=64, seed=2) as batch:
        list(batch.generate([IDS[:9], IDS[3:8]], [SAMPLED, SamplingParams()], 5))
        first, second = batch.sessions
        rows = rows_of(model, first.tokens)
        assert len(first.logprobs) == 5
        assert second.logprobs == []
        for i, one in enumerate(first.logprobs):
            check(one, rows[8 + i], first.generated[i], 3)


def test_after_the_chain_they_are_what_it_leaves(model: graphml.Model) -> None:
    params = SamplingParams(temperature=0.7, top_k=5, logprobs=20, post_sampling_probs=True)
    with model.session(n_ctx=64, seed=9) as session:
        (token,) = session.generate(IDS[:9], params, 1)
    (result,) = model.generate([IDS[:9]], params, 1, seed=9)
    row = rows_of(model, IDS[:9])[-1]
    ids, p = sampler_of(params).distribution(row, IDS[:9])
    expected = dict(zip(ids.tolist(), np.log(p).tolist(), strict=True))
    for found in (token.logprobs, (result.logprobs or [None])[0]):
        assert found is not None
        assert len(found.top) == 5
        assert {one.id: one.logprob for one in found.top} == pytest.approx(expected, abs=1e-3)
        assert found.logprob == pytest.approx(expected[found.id], abs=1e-3)
        assert sum(math.exp(one.logprob) for one in found.top) == pytest.approx(1)


def test_under_a_grammar_they_are_the_models_or_what_the_mask_leaves() -> None:
    with graphml.load(STORIES, "cpu", threads=1, kv="f32") as model, model.session(n_ctx=64) as session:
        ids = model.encode("Once upon")
        for post in (False, True):
            session.rewind(0)
            params = SamplingParams(choices=(" dog", " cat"), logprobs=1, post_sampling_probs=post)
            (token, *_) = session.generate(ids, params, 3)
            assert token.logprobs is not None
            row = rows_of(model, ids)[-1]
            if post:
                assert (token.logprob, token.top_logprobs[0].id) == (0.0, token.id)  # greedy
            else:
                check(token.logprobs, row, token.id, 1)


def test_rows_with_forbidden_tokens_and_even_rows() -> None:
    row = np.array([1.0, -np.inf, 3.0, 2.0], np.float32)
    assert of_row(row, 1, 4).logprob == -math.inf
    assert of_row(row, 1, 4).rank == 4
    check(of_row(row[[0, 2, 3]], 2, 2), row[[0, 2, 3]], 2, 2)
    assert of_row(row, 2, 1).entropy == pytest.approx(of_row(row[[0, 2, 3]], 1, 1).entropy)
    assert of_row(np.zeros(8, np.float32), 5, 3).entropy == pytest.approx(math.log(8))
    assert [one.id for one in of_row(np.zeros(8, np.float32), 5, 3).top] == [0, 1, 2]


def test_a_prompts_rows_that_are_no_numbers_fail_its_request_alone() -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[1, 2] = np.nan
    scored = [Sequence(Request(np.arange(3, dtype=np.int32), ASKED), i) for i in range(2)]
    for one in scored:
        one.prompt_scores = [None]
    plan: Any = SimpleNamespace(
        rows=[
            SimpleNamespace(sequence=scored[0], n_scored=1, n_outputs=1, first_scored=0),
            SimpleNamespace(sequence=scored[1], n_scored=2, n_outputs=2, first_scored=0),
        ]
    )
    failed = keep_scores({"logits": rows}, plan, STORIES)
    assert list(failed) == [scored[1]]
    assert isinstance(failed[scored[1]], WeightsError)
    assert len(scored[0].prompt_scores or ()) == 2


def test_a_session_keeps_nothing_of_a_prompt_that_fails_or_is_cancelled(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_rows, run = list[int](), Room.run

    def damaged(outputs: Any, *others: Any) -> Any:
        return keep_scores({"logits": np.full_like(outputs["logits"], np.nan)}, *others)

    def cancelled(room: Room, parts: Any, *others: Any) -> None:
        n_rows.append(sum(rows.count for rows, _ in parts.values()))
        session.cancel()
        run(room, parts, *others)

    with model.session(n_ctx=128) as session:
        session.eval(IDS[:3])
        with monkeypatch.context() as patched:
            patched.setattr("graphml.runtime.steps.runner.keep_scores", damaged)
            with pytest.raises(WeightsError, match="logits are no numbers: NaN for token 0"):
                list(session.generate(IDS[3:], ASKED, 1))
        assert session.tokens == IDS[:3]
        assert session.prompt_logprobs == []
        with monkeypatch.context() as patched:
            patched.setattr(Room, "run", cancelled)
            assert list(session.generate(IDS[3:], ASKED, 1)) == []
        assert len(n_rows) == 1
        assert n_rows[0] <= MOST_ROWS
        assert session.tokens == IDS[:3]
        assert session.prompt_logprobs == [None] * 3
        list(session.generate(IDS[3:], ASKED, 0))
        found = session.prompt_logprobs
    rows = rows_of(model, IDS)
    for i in range(3, len(IDS)):
        check(found[i], rows[i - 1], IDS[i], 2)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_wrong_numbers_are_refused(field: str) -> None:
    for value in (-1, 257, 1.5, "2"):
        with pytest.raises(UsageError, match=rf"^{field}: wanted "):
            SamplingParams(**{field: value})
    with pytest.raises(UsageError, match=r"^post_sampling_probs: wanted True or False"):
        SamplingParams(post_sampling_probs=1)
