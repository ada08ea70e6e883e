"""Sessions of models whose layers see windows: the same answers in less memory, and rewinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api.model import Model
from graphml.api.perplexity import perplexity
from graphml.api.session import Session
from graphml.errors import UsageError
from graphml.runtime.sessions.evaluation import Floats
from graphml.runtime.steps.runner import Runner
from tests.sample_models import MODELS, write_model

N_BATCH, N_CTX = 24, 256
IDS = np.random.default_rng(11).integers(0, 80, 200).tolist()


@pytest.fixture(scope="module", params=["gemma3-plain", "llama4-chunks"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Model]]:
    """A model that keeps windows alone, and one that keeps all."""
    path = write_model(tmp_path_factory.mktemp("windows") / "model.gguf", *MODELS[request.param])
    context = {".context_length": N_CTX}
    options: dict[str, Any] = {"kv": "f32", "n_batch": N_BATCH, "threads": 1, "override_kv": context}
    with (
        graphml.load(path, **options) as windows,
        graphml.load(path, swa_full=True, **options) as whole,
    ):
        yield [windows, whole]


def bytes_of(session: Session) -> int:
    return session.sequence().room.runner.state.n_bytes


def evaluated(model: Model, session: Session, ids: list[int]) -> tuple[Floats, int]:
    """The logits after ids, and how many steps they took."""
    before = model.executor.n_steps
    return session.eval(ids), model.executor.n_steps - before


def test_it_says_the_same_in_less_memory(models: list[Model]) -> None:
    found, sizes = [], []
    for model in models:
        with model.session(N_CTX) as session:
            tokens = [token.id for token in session.generate(IDS[:150], max_tokens=60)]
            found.append((tokens, session.eval(IDS[:30], all_logits=True)))
            sizes.append(bytes_of(session))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert sizes[0] < 0.7 * sizes[1]


def test_a_rewind_of_n_batch_tokens_is_free_and_a_longer_one_is_not(models: list[Model]) -> None:
    """What was written over is evaluated again, from the first token on; the logits are the same."""
    windows, whole = models
    with windows.session(N_CTX) as session, whole.session(N_CTX) as other:
        for one in (session, other):
            one.eval(IDS)
            one.rewind(len(IDS) - N_BATCH)
        assert session.sequence().n_computed == len(IDS) - N_BATCH
        got, n_steps = evaluated(windows, session, [1, 2, 3])
        assert n_steps == 1
        np.testing.assert_array_equal(got, other.eval([1, 2, 3]))
        for one in (session, other):
            one.rewind(70)
            assert one.tokens == IDS[:70]
        got, n_steps = evaluated(windows, session, [4])
        assert n_steps == -(-71 // N_BATCH)
        wanted, n_steps = evaluated(whole, other, [4])
        assert n_steps == 1
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_interrupted_prompt_leaves_the_session_as_it_was(
    models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first steps have written over what the session holds: that is evaluated again."""
    with models[0].session(N_CTX) as session, models[0].session(N_CTX) as fresh:
        session.eval(IDS[:40])
        steps = iter([Runner.run] * 5)
        with monkeypatch.context() as patched:
            patched.setattr(Runner, "run", lambda *all: next(steps, interrupted)(*all))
            with pytest.raises(KeyboardInterrupt):
                session.eval(IDS[40:])
        assert session.tokens == IDS[:40]
        np.testing.assert_allclose(session.eval([7]), fresh.eval([*IDS[:40], 7]), rtol=1e-4, atol=1e-5)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_sequences_of_a_batch_have_windows_of_their_own(models: list[Model]) -> None:
    found = []
    prompts = [IDS[:130], IDS[50:70], IDS[100:190]]
    for model in models:
        with model.batch(3, N_CTX) as batch:
            first = batch.eval(prompts)
            rounds = [(i, token.id) for i, token in batch.generate([[1], [2], [3]], max_tokens=40)]
            found.append((first, rounds))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_perplexity_is_the_same(models: list[Model]) -> None:
    found = []
    for model in models:
        with model.session(96) as session:
            found.append([one.value for one in perplexity(session, IDS, 96)])
    assert found[0] == found[1]


def test_an_engine_generates_the_same_and_finds_prefixes(models: list[Model]) -> None:
    """Prompts in chunks of n_batch, sequences beside each other, and hits of whole prefixes."""
    texts, hits = [], []
    for model in models:
        with model.engine(n_ctx=N_CTX, max_sequences=2) as engine:
            handles = [engine.submit(IDS[:count], max_tokens=50) for count in (150, 40, 90)]
            found = [handle.result().tokens for handle in handles]
            again = engine.submit(IDS[:150], max_tokens=50).result()
            longer = engine.submit([*IDS[:150], *again.tokens, 5, 6], max_tokens=20).result()
            texts.append([*found, again.tokens, longer.tokens])
            hits.append((again.n_cached, longer.n_cached))
    assert texts[0] == texts[1]
    assert texts[0][3] == texts[0][0]
    assert hits[1] == (149, 199)  # all but the last id of each, which is always computed
    assert 64 <= hits[0][0] <= 128  # where windows are still there
    assert hits[0][1] == 192


def test_an_engine_has_blocks_for_more_tokens_in_the_same_memory(models: list[Model]) -> None:
    """Down to so little that one sequence runs at a time."""
    sizes = []
    for model in models:
        wanted = [handle_tokens(model, None), handle_tokens(model, 160_000)]
        assert wanted[0] == wanted[1]
        with model.engine(kv_memory=160_000, n_ctx=N_CTX, max_sequences=3) as engine:
            sizes.append(engine.n_ctx)
    assert sizes[0] > sizes[1]


def handle_tokens(model: Model, kv_memory: int | None) -> list[list[int]]:
    with model.engine(kv_memory=kv_memory, n_ctx=N_CTX, max_sequences=3) as engine:
        handles = [engine.submit(IDS[i : i + 40], max_tokens=20) for i in (0, 60, 100)]
        return [handle.result().tokens for handle in handles]


def test_a_saved_session_has_its_windows(models: list[Model], tmp_path: Path) -> None:
    """Of windows only what the next token sees is saved: a rewind before that evaluates again."""
    path, found = tmp_path / "session.safetensors", []
    with models[0].session(N_CTX) as session:
        session.eval(IDS)
        session.save(path)
        with models[0].restore(path) as again:
            assert isinstance(again, Session)
            np.testing.assert_array_equal(again.eval([1, 2]), session.eval([1, 2]))
            for one in (session, again):
                one.rewind(len(IDS) - 50)
                found.append(one.eval([3]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_a_shift_moves_windows_that_hold_all_and_evaluates_again_what_others_lost(
    models: list[Model],
) -> None:
    windows, whole = models
    with windows.session(N_CTX) as session, whole.session(N_CTX) as other:
        for count, exact in ((40, False), (len(IDS), True)):
            for one in (session, other):
                one.rewind(0)
                one.eval(IDS[:count])
                one.shift(5, 10)
            assert session.tokens == other.tokens == IDS[:5] + IDS[15:count]
            if exact:  # as if the tokens that are left had come alone
                other.rewind(0)
                other.eval(session.tokens)
            got, n_steps = evaluated(windows, session, [1, 2, 3])
            assert n_steps == (-(-(count - 10 + 3) // N_BATCH) if exact else 1)
            np.testing.assert_allclose(got, other.eval([1, 2, 3]), rtol=1e-4, atol=1e-5)


def test_an_engine_shifts_no_windows(models: list[Model]) -> None:
    windows, whole = models
    with windows.engine(max_sequences=2, n_ctx=64) as engine, pytest.raises(UsageError, match="swa_full"):
        engine.submit(IDS[:10], overflow="shift")
    with whole.engine(max_sequences=2, n_ctx=64) as engine:
        assert len(engine.submit(IDS[:10], max_tokens=90, overflow="shift").result().tokens) == 90
    for model in models:
        with model.engine(max_sequences=3, n_ctx=128) as engine:
            results = engine.submit(IDS[:70], max_tokens=8, n=3).results()
            assert len({tuple(one.tokens) for one in results}) == 1
            assert engine.stats().blocks_used == 0
