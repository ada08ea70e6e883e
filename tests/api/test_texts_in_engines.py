"""Texts that become rows: requests of an engine, beside others and from many threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api.text_rows import AHEAD
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.sessions.evaluation import Floats
from graphml.runtime.steps.computed_plan import Computed
from tests.api.tiny_models import opened_models
from tests.sample_models import MODELS, write_model

model = opened_models(["llama-plain", "gemma3-plain", "mamba-plain", "jamba-plain"])
CHANCE = np.random.default_rng(8)
TEXTS = [CHANCE.integers(0, 80, size).tolist() for size in (3, 30, 12, 1, 20, 32, 7, 9)]
PROMPTS = [CHANCE.integers(0, 80, size).tolist() for size in (50, 9)]


def close(found: Floats, wanted: Floats) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_rows_in_an_engine_are_those_of_the_model(model: graphml.Model) -> None:
    """Beside prompts that are computed and continued, in slots and blocks that others have used."""
    with model.engine(max_sequences=3, n_ctx=128) as engine:
        alone = [engine.submit(ids, max_tokens=30).result().tokens for ids in PROMPTS]
    for pooling in ("last", "mean", "none"):
        wanted = [model.embed_ids([ids], pooling)[0] for ids in TEXTS]
        for rows, of_all in zip(model.embed_ids(TEXTS, pooling), wanted, strict=True):
            close(rows, of_all)
        with model.engine(max_sequences=3, n_ctx=128) as engine, engine.timeline() as timeline:
            for _ in range(2):
                handles = [engine.submit(ids, max_tokens=30) for ids in PROMPTS]
                found = engine.embed_ids(TEXTS, pooling)
                assert [handle.result().tokens for handle in handles] == alone
                for rows, of_one in zip(found, wanted, strict=True):
                    assert rows.shape == of_one.shape
                    close(rows, of_one)
            assert engine.stats().blocks_used == 0
            orders = {one.sequence for step in timeline.steps for one in step.rows}
            assert len(orders) == 2 * (len(PROMPTS) + len(TEXTS))


def test_texts_of_several_threads_share_steps(model: graphml.Model) -> None:
    wanted = [model.embed_ids([ids], "last")[0] for ids in TEXTS]
    found: list[Any] = [None] * len(TEXTS)

    def embed(number: int) -> None:
        found[number] = model.embed_ids([TEXTS[number]], "last")[0]

    before = model.executor.n_steps
    (engine,) = [one for pooling, one in model._texts._engines.items() if pooling == "last"]
    with model.executor.lock:  # no step runs before all are there
        threads = [threading.Thread(target=embed, args=(number,)) for number in range(len(TEXTS))]
        engine._runner.prepare_texts("last", map(len, TEXTS))
        for thread in threads:
            thread.start()
        end = time.monotonic() + 2.0  # some texts may be in the step that waits for the lock
        while len(engine._loop.scheduler.waiting) < len(TEXTS) - 1 and time.monotonic() < end:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert model.executor.n_steps - before < len(TEXTS)
    for rows, of_one in zip(found, wanted, strict=True):
        close(rows, of_one)


def test_an_error_fails_the_texts_of_its_step_alone(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.engine(max_sequences=3, n_ctx=128) as engine:
        wanted = engine.embed_ids(TEXTS[:2], "last")
        runner = engine._loop._runner
        assert runner is not None
        run = runner.run

        def fails(plan: StepPlan) -> Computed:
            if any(len(one.ids) == 32 for one in plan.texts):
                raise RuntimeError("this text")
            return run(plan)

        monkeypatch.setattr(runner, "run", fails)
        with pytest.raises(RuntimeError, match="this text"):
            engine.embed_ids(TEXTS, "last")
        again = engine.embed_ids(TEXTS[:2], "last")
        for rows, before in zip(again, wanted, strict=True):
            close(rows, before)
        assert engine.stats().blocks_used == 0


def test_a_few_texts_of_a_caller_wait_at_a_time(model: graphml.Model) -> None:
    """So that what comes later need not wait for all of them, nor each step look at all."""
    most, texts = 0, [[i % 80] for i in range(100)]
    wanted = model.embed_ids(texts, "last")
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        loop = engine._loop
        add = loop.add

        def counted(members: Any) -> None:
            nonlocal most
            add(members)
            most = max(most, len(loop.scheduler.waiting))

        loop.add = counted  # type: ignore[method-assign]
        found = engine.embed_ids(texts, "last")
    assert 0 < most <= 2 * AHEAD * 2
    for rows, of_one in zip(found, wanted, strict=True):
        close(rows, of_one)


def test_what_cannot_be_is_refused_at_once(model: graphml.Model) -> None:
    engine = model.engine(max_sequences=1, n_ctx=32)
    for texts, said in (([[1] * 33], r"texts\[0\]: wanted 1 to 32"), ([[1], []], r"texts\[1\]: wanted 1")):
        with pytest.raises(graphml.UsageError, match=said):
            engine.embed_ids(texts, "last")
    with pytest.raises(graphml.UsageError, match="key: wanted a text"):
        engine.embed_ids([[1]], "last", key=3)  # type: ignore[arg-type]
    assert engine.embed_ids([], "last") == []
    engine.close()
    with pytest.raises(graphml.UsageError, match="engine: it was closed"):
        engine.embed_ids([[1]], "last")


def test_a_closed_model_embeds_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_model(tmp_path_factory.mktemp("closed") / "model.gguf", *MODELS["llama-plain"])
    model = graphml.load(path, "reference", n_batch=32)
    rows = model.embed_ids([[1, 2]], "last")[0]
    assert np.isfinite(rows).all()
    model.close()
    with pytest.raises(graphml.UsageError, match="the model was closed"):
        model.embed_ids([[1, 2]], "last")
