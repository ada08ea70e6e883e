"""Speculation: with drafts a text is what it is without them, from fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.api.engine import Engine
from graphml.errors import UsageError
from graphml.loading import open_file
from graphml.runtime.blocks.drafting import DRAFT_ROWS, Proposal, StepTimes
from graphml.sampling import SamplingParams
from graphml.weights import ModelFile, open_model
from tests import tiny_model
from tests.stories import STORIES

ONCE = [1, 403, 407, 261]
SAMPLED = {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1, "dry_multiplier": 0.5}
MIROSTAT = {"temperature": 1.0, "mirostat": 2}
XTC = {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05}
LLAMA_CPP = {"temperature": 0.9, "top_k": 20, "rng": "llama.cpp"}
KINDS = pytest.mark.parametrize(
    "kind", [{}, SAMPLED, MIROSTAT, XTC, LLAMA_CPP], ids=["greedy", "sampled", "mirostat", "xtc", "llama.cpp"]
)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose times do not depend on what else the machine does: lengths of drafts follow them."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64) as model:
        yield model


@pytest.fixture(scope="module")
def text(model: graphml.Model) -> list[int]:
    """A text that the model itself would write, so that greedy drafts from it are right."""
    with model.session() as session:
        return [*ONCE, *(token.id for token in session.generate(ONCE, max_tokens=60))]


def at_rest(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def params(kind: dict[str, object], spec_type: str = "ngram", **more: object) -> SamplingParams:
    return SamplingParams(spec_type=spec_type, **{**kind, **more})  # type: ignore[arg-type]


@KINDS
def test_a_session_gives_the_same_tokens_with_drafts(
    model: graphml.Model, text: list[int], kind: dict[str, object]
) -> None:
    found = []
    for spec_type in ("none", "ngram"):
        with model.session(seed=5) as session:
            prompt = [*text, *ONCE]
            found.append([token.id for token in session.generate(prompt, params(kind, spec_type), 80)])
            assert session.tokens == [*prompt, *found[-1]]
            found.append(list(session.logits))  # it goes on as the other
            stats = session.stats
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert 0 <= stats.n_accepted <= stats.n_drafted
    if not kind:
        assert stats.n_accepted > 20


@KINDS
def test_an_engine_gives_the_same_tokens_with_drafts(
    model: graphml.Model, text: list[int], kind: dict[str, object]
) -> None:
    prompts = [[*text, *ONCE], [*text[:40], *text[:9]], ONCE]
    found = []
    for spec_type in ("none", "ngram"):
        with model.engine(max_sequences=4, n_ctx=256) as engine, engine.timeline() as timeline:
            handles = [
                engine.submit(prompt, params(kind, spec_type), 60, seed=i, n=1 + (i == 2))
                for i, prompt in enumerate(prompts)
            ]
            results = [one for handle in handles for one in handle.results(60)]
            stats = engine.stats()
            at_rest(engine)
        found.append([one.tokens for one in results])
    assert found[0] == found[1]
    assert stats.n_drafted == sum(one.n_drafted for one in results)
    assert stats.n_drafted == sum(rows.drafted for step in timeline.steps for rows in step.rows)
    sizes = [len(prompts[min(order, 2)]) for order in range(4)]
    later = [r for step in timeline.steps for r in step.rows if r.start >= sizes[r.sequence]]
    assert all(rows.generates for rows in later)  # nothing that was right is computed once more
    assert all(step.n_rows <= DRAFT_ROWS for step in timeline.steps if any(r.drafted for r in step.rows))
    assert stats.n_accepted == sum(one.n_accepted for one in results)
    if not kind:
        assert stats.n_accepted > 20


def test_few_rows_have_the_bits_of_one_row(model: graphml.Model, text: list[int]) -> None:
    """What greedy equality rests on, with no `deterministic`: rows of a draft are as rows alone."""
    from graphml.runtime.sessions.evaluation import drafted_logits

    with model.session() as session:
        session.eval(text[:20])
        alone = [session.eval([id]) for id in text[20 : 20 + DRAFT_ROWS]]
        for count in (2, 3, 5, 8, 16):
            session.rewind(20)
            ids = np.array(text[20 : 20 + count], np.int32)
            rows = drafted_logits(session.sequence(), ids, 0, model.executor.options)
            session.sequence()
            assert [row.tobytes() for row in rows] == [row.tobytes() for row in alone[:count]]


class Wrong:
    """Drafts that are never right."""

    costs_time = False

    def propose(self, ids: list[int], count: int) -> Proposal:
        return Proposal([300] * count, "long")

    def close(self) -> None: ...


def test_wrong_drafts_change_nothing_and_end(
    model: graphml.Model, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session() as session:
        wanted = [token.id for token in session.generate(ONCE, params({}, "none"), 60)]
    monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", Wrong)
    with model.session() as session:
        assert [token.id for token in session.generate(ONCE, params({}), 60)] == wanted
        assert session.stats.n_accepted == 0
        assert 0 < session.stats.n_drafted < 200
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        result = engine.submit(ONCE, params({}), 60).result(60)
        assert result.tokens == wanted
        assert 0 < result.n_drafted < 200


def test_a_generation_that_is_left_leaves_what_it_gave(model: graphml.Model, text: list[int]) -> None:
    with model.session() as session, model.session() as other:
        prompt, given = [*text, *ONCE], []
        for token in session.generate(prompt, params({})):
            given.append(token.id)
            if len(given) == 7:
                break
        assert session.tokens == [*prompt, *given]
        other.eval(prompt)
        for id in given:
            wanted = other.eval([id])
        assert session.logits.tobytes() == wanted.tobytes()


def test_the_context_and_stop_strings_end_it_as_without(model: graphml.Model, text: list[int]) -> None:
    prompt = [*text, *ONCE]
    for more, n_ctx in (({}, len(prompt) + 9), ({"stop": ("big",)}, 256)):
        found = []
        for spec_type in ("none", "ngram"):
            with model.session(n_ctx=n_ctx) as session:
                tokens = list(session.generate(prompt, params({}, spec_type, **more)))
                found.append(([(one.id, one.piece) for one in tokens], session.stop_reason))
            with model.engine(n_ctx=n_ctx) as engine:
                result = engine.submit(prompt, params({}, spec_type, **more)).result(60)
                found.append((result.text, result.stop_reason))
        assert found[:2] == found[2:]
        assert found[0][1] == ("stop" if more else "context")


def test_a_grammar_cuts_drafts(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, "cpu", threads=1, n_batch=32) as model:
        prompt = model.encode("abcabcabc, abcabcabc, ")
        found = []
        for spec_type in ("none", "ngram"):
            kind = params({"temperature": 0.8}, spec_type, regex="(abc|[xyz]){12}")
            with model.session(seed=2) as session:
                found.append([token.id for token in session.generate(prompt, kind, 40)])
                drafted = session.stats.n_drafted
            with model.engine(max_sequences=2) as engine:
                found.append(engine.submit(prompt, kind, 40, seed=2).result(60).tokens)
        assert found[0] == found[2]
        assert found[1] == found[3]
        assert drafted


def test_batches_and_sessions_that_capture_refuse_drafts(model: graphml.Model) -> None:
    with model.batch(2) as batch, pytest.raises(UsageError, match=r"spec_type.*batch"):
        list(batch.generate([[1], [2]], params({}), 2))
    with model.session(capture="logits") as probed, pytest.raises(UsageError, match=r"spec_type.*captures"):
        probed.generate([1], params({}))
    with model.session() as session, pytest.raises(UsageError, match=r"spec_type.*draft_model"):
        session.generate([1], params({}, "draft"))
    with model.session() as session, pytest.raises(UsageError, match=r"spec_draft_n_min.*at most"):
        session.generate([1], params({}, spec_draft_n_min=20))


def test_a_draft_model_gives_the_same_tokens(model: graphml.Model) -> None:
    """The model drafts for itself, so that greedy drafts are right."""
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64, draft_model=STORIES) as drafted:
        for kind in ({}, SAMPLED):
            found = []
            for of, spec_type in ((model, "none"), (drafted, "auto"), (drafted, "none")):
                with of.session(seed=5) as session:
                    found.append([t.id for t in session.generate(ONCE, params(kind, spec_type), 60)])
                    stats = session.stats
                    assert (stats.n_drafted > 0) == (spec_type == "auto")
                with of.engine(max_sequences=4, n_ctx=128) as engine:
                    handles = [engine.submit(ONCE, params(kind, spec_type), 60, seed=i) for i in (5, 6)]
                    results = [handle.result(60) for handle in handles]
                    found.append([one.tokens for one in results])
                    assert (results[0].n_drafted > 0) == (spec_type == "auto")
                    at_rest(engine)
                if not kind and spec_type == "auto":
                    assert stats.n_accepted == stats.n_drafted
            assert found[:2] * 2 == found[2:]


def test_a_draft_model_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(path: Path) -> ModelFile:
        opened.append(path)
        return open_model(path)

    monkeypatch.setattr(open_file, "open_model", counted)
    graphml.load(STORIES, "cpu", threads=1, draft_model=STORIES).close()
    assert opened == [STORIES, STORIES]


def test_a_draft_of_another_vocabulary_is_translated(tmp_path: Path) -> None:
    own = tiny_model.write(tmp_path / "tiny.gguf")
    prompt = "hello world, hello"
    for draft_model, some in ((own, True), (STORIES, False)):
        with graphml.load(own, "cpu", threads=1, n_batch=32, draft_model=draft_model) as model:
            assert model.draft is not None
            assert (model.draft.translate is None) == some
            found = []
            for spec_type in ("none", "draft"):
                with model.session(seed=1) as session:
                    found.append(
                        [t.id for t in session.generate(model.encode(prompt), params({}, spec_type), 40)]
                    )
            assert found[0] == found[1]


def test_models_that_cannot_draft_are_refused(tmp_path: Path) -> None:
    without = tiny_model.write(tmp_path / "without.gguf", tokenizer=False)
    with pytest.raises(UsageError, match=r"draft_model: wanted the 512 tokens.*has"):
        graphml.load(STORIES, "cpu", threads=1, draft_model=without)
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="draft_model: wanted a model's file or name"):
            graphml.load(STORIES, "cpu", threads=1, draft_model=wrong)  # type: ignore[arg-type]


def test_steps_of_few_tokens_have_few_drafts(text: list[int]) -> None:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=4) as model, model.engine(max_sequences=2) as engine:
        found = [engine.submit([*text, *ONCE], params({}, one), 40).result(60) for one in ("none", "ngram")]
        assert found[0].tokens == found[1].tokens
        assert found[1].n_accepted


def test_prompts_of_one_token_may_join_a_step_full_of_drafts(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", Wrong)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.draft_lengths", lambda *_: [DRAFT_ROWS - 1])
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        first = engine.submit(ONCE, params({}), 100)
        tokens = iter(first)
        assert [next(tokens) for _ in range(3)]  # by now it drafts
        others = [engine.submit(ONCE[:1], None, 5) for _ in range(3)]
        assert [len(one.result(60).tokens) for one in (*others, first)] == [5, 5, 5, 100]


class Failing(Wrong):
    def propose(self, ids: list[int], count: int) -> Proposal:
        raise MemoryError("no room for another model's session")


@pytest.mark.parametrize("by", ["drafter", "matcher"])
def test_what_fails_while_drafts_are_made_is_one_requests_own(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    late = {"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": ("b",), "rng": "llama.cpp"}
    wanted, kind = (MemoryError, {}) if by == "drafter" else (UsageError, late)
    if by == "drafter":
        monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", Failing)
    else:
        kind["logit_bias"] = {model.encode("b")[-1]: 50.0}
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        other, handle = engine.submit(ONCE, None, 20), engine.submit(ONCE, params(kind), 20)
        with pytest.raises(wanted):
            handle.result(60)
        assert len(other.result(60).tokens) == 20
        assert engine.failure is None
        at_rest(engine)
