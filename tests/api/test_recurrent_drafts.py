"""Speculation with recurrent states: they go back to before a draft that is wrong; texts stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import DRAFT_ROWS, Proposal, StepTimes, draft_lengths
from graphml.sampling import SamplingParams
from tests.api.test_drafts import at_rest, params
from tests.api.tiny_models import opened_models
from tests.sample_models import MODELS, write_model

NAMES = ["qwen3next-plain", "mamba-plain", "jamba-plain", "rwkv7-plain"]
model = opened_models(NAMES)
IDS = np.random.default_rng(2).integers(0, 80, 120).tolist()
SAMPLED = {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1}
PROMPTS = [IDS[:40], IDS[40:43], IDS[50:90]]
KINDS = pytest.mark.parametrize(
    "kind", [{}, SAMPLED, {"temperature": 1.0, "mirostat": 2}], ids=["greedy", "sampled", "mirostat"]
)

# Engines go back to copies of states as sessions do, which both backends try; each backend's copies are in
# tests/runtime/test_state_rows.py.
ON_THE_CPU = pytest.mark.parametrize("model", [(name, "cpu") for name in NAMES], indirect=True, ids="-".join)


class Known:
    """Drafts from texts that are known, with a wrong id at some places."""

    costs_time = False
    texts: Sequence[Sequence[int]] = ()

    def propose(self, ids: list[int], count: int) -> Proposal:
        wrong = len(ids) * 7 % 5  # 0: the first; 4: none of so few
        for text in self.texts:
            if list(text[: len(ids)]) == list(ids):
                found = list(text[len(ids) : len(ids) + min(count, 4)])
                found[wrong : wrong + 1] = [(one + 1) % 80 for one in found[wrong : wrong + 1]]
                return Proposal(found, "long")
        return Proposal([])

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def drafts_of_known_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.01 * n_rows)
    monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", Known)
    yield
    Known.texts = ()


@KINDS
def test_sessions_with_recurrent_states_give_the_same_tokens(
    model: graphml.Model, kind: dict[str, object]
) -> None:
    found, rows = [], []
    for spec_type in ("none", "ngram"):
        with model.session(n_ctx=128, seed=5) as session:
            tokens = [token.id for token in session.generate(PROMPTS[0], params(kind, spec_type), 50)]
            found.append(tokens)
            rows.append(session.logits)
            assert session.tokens == [*PROMPTS[0], *tokens]
            Known.texts = [session.tokens]
            stats = session.stats
    assert found[0] == found[1]
    assert same(model, *rows)
    assert 0 < stats.n_accepted < stats.n_drafted


@ON_THE_CPU
@KINDS
def test_engines_with_recurrent_states_give_the_same_tokens(
    model: graphml.Model, kind: dict[str, object]
) -> None:
    """Alone and in batches; and what they leave for others is of use as without drafts."""
    for prompts in (PROMPTS[:1], PROMPTS):
        found, later = [], []
        Known.texts = ()
        for spec_type in ("none", "ngram"):
            with model.engine(max_sequences=4, n_ctx=128) as engine, engine.timeline() as timeline:
                handles = [
                    engine.submit(one, params(kind, spec_type), 60, seed=i) for i, one in enumerate(prompts)
                ]
                results = [handle.result(60) for handle in handles]
                turn = [*prompts[0], *results[0].tokens, 5, 6, 7]
                later.append(engine.submit(turn, max_tokens=8).result(60))
                stats = engine.stats()
                at_rest(engine)
            found.append([one.tokens for one in results])
            Known.texts = [[*one, *result.tokens] for one, result in zip(prompts, results, strict=True)]
        assert found[0] == found[1]
        assert 0 < stats.n_accepted < stats.n_drafted == sum(one.n_drafted for one in results)
        assert later[0].tokens == later[1].tokens
        assert later[0].n_cached == later[1].n_cached == 96
        drafting = [step for step in timeline.steps if any(rows.drafted for rows in step.rows)]
        assert drafting
        assert all(step.n_rows <= DRAFT_ROWS for step in drafting)


@ON_THE_CPU
def test_preempted_sequences_with_recurrent_states_go_on(model: graphml.Model) -> None:
    if not model.executor.compiled(1, 1).graph.leaves("input").get("block_table"):
        pytest.skip("without cells nobody is preempted")
    found = []
    for spec_type in ("none", "ngram"):
        with model.engine(max_sequences=3, n_ctx=96, kv_memory=memory(model, 6)) as engine:
            with model.executor.lock:  # no step runs before all are there
                handles = [engine.submit(one, params({}, spec_type), 50) for one in PROMPTS]
            results = [handle.result(60) for handle in handles]
            assert engine.stats().n_preempted > 0
        found.append([one.tokens for one in results])
        Known.texts = [[*one, *result.tokens] for one, result in zip(PROMPTS, results, strict=True)]
    assert found[0] == found[1]
    assert sum(one.n_accepted for one in results) > 0


def same(model: graphml.Model, first: np.ndarray, second: np.ndarray) -> bool:
    """To the bit; of float experts and on the reference backend sums depend on how many rows there are."""
    if model.executor.backend.name == "cpu" and model.arch != "qwen3next":
        return np.array_equal(first, second)
    return np.allclose(first, second, rtol=1e-3, atol=1e-4)


def memory(model: graphml.Model, n_blocks: int) -> int:
    """Bytes of so many blocks beside the states of three sequences."""
    from graphml.runtime.programs.memory_needed import state_bytes

    return state_bytes(model.executor, {"S": 3, "C": 32 * n_blocks})


def test_rewound_and_forked_sessions_with_drafts_hold_what_they_say(model: graphml.Model) -> None:
    with model.session(n_ctx=128) as session:
        Known.texts = [[*IDS[:40], *(token.id for token in session.generate(IDS[:40], None, 60))]]
    for count in range(2, 12):
        with model.session(n_ctx=128) as session, model.session(n_ctx=128) as other:
            given = [token.id for token in islice(session.generate(IDS[:40], params({})), count)]
            assert session.stats.n_drafted
            fork = session.fork()
            n = 40 + count // 2
            session.rewind(n)
            text = [*IDS[:40], *given]
            for one, held in ((fork, text), (session, text[:n])):
                other.rewind(0)
                assert one.tokens == held
                assert np.allclose(one.eval([3, 4]), other.eval([*held, 3, 4]), rtol=1e-3, atol=1e-4)
            fork.close()


@ON_THE_CPU
def test_prompts_join_while_drafts_are_tried(model: graphml.Model) -> None:
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        wanted = [engine.submit(one, None, 40).result(60).tokens for one in PROMPTS]
    Known.texts = [[*one, *tokens] for one, tokens in zip(PROMPTS, wanted, strict=True)]
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        first = engine.submit(PROMPTS[0], params({}), 40)
        tokens = iter(first)
        given = [next(tokens).id for _ in range(4)]
        others = [engine.submit(one, params({}), 40) for one in PROMPTS[1:]]
        assert [one.result(60).tokens for one in others] == wanted[1:]
        assert [*given, *(token.id for token in tokens)] == wanted[0]


def test_recurrent_models_with_windows_refuse_drafts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS["lfm2-plain"])
    with (
        graphml.load(path, "cpu", threads=1, n_batch=32) as windowed,
        windowed.engine(max_sequences=2) as engine,
        windowed.session() as session,
    ):
        for ask in (engine.submit, session.generate):
            with pytest.raises(UsageError, match=r"spec_type.*recurrent states and windows.*swa_full"):
                ask([1, 2], params({}))
    with graphml.load(path, "cpu", threads=1, n_batch=32, swa_full=True) as whole, whole.session() as session:
        assert len(list(session.generate([1, 2], SamplingParams(spec_type="ngram"), 5))) == 5


def test_rows_that_states_read_again_make_drafts_dearer() -> None:
    def seconds(n_rows: int) -> float:
        return 1 + 0.1 * n_rows

    assert draft_lengths(1, [(4, 0.15)], seconds) == [1]
    assert draft_lengths(1, [(4, 0.15)], seconds, n_again=0) == [0]
    assert draft_lengths(1, [(9, 0.99)], seconds, 8, n_again=4) == [3]
