"""Engines of T5: texts are read in the plan, and answered beside others as alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import graphml
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.programs import memory_needed
from graphml.runtime.steps.runner import Runner
from tests.backend_pairs import BACKENDS, PROCESSORS
from tests.golden import nmse
from tests.one_text import logits_of
from tests.sample_models import MODELS, write_model

CHANCE = np.random.default_rng(4)
TEXTS = [CHANCE.integers(0, 80, size).tolist() for size in (40, 7, 33, 1, 12, 64)]
START = 3  # of the sample "plain"
CLOSE = 1e-10


@pytest.fixture(scope="module", params=PROCESSORS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[graphml.Model]:
    path = write_model(tmp_path_factory.mktemp("t5") / "t5.gguf", *MODELS["t5-plain"])
    with graphml.load(path, request.param, threads=2, n_batch=64, kv="f32") as opened:
        yield opened


def alone(model: graphml.Model, text: list[int], max_tokens: int) -> list[int]:
    with model.session(n_ctx=64) as session:
        return [token.id for token in session.generate(text, max_tokens=max_tokens)]


def test_texts_are_answered_as_alone(model: graphml.Model) -> None:
    """More than run at a time; each again, in the other order, while others run."""
    with model.engine(max_sequences=3, n_ctx=64) as engine:
        texts = [*TEXTS, *TEXTS[::-1]]
        handles = [engine.submit(text, max_tokens=20) for text in texts]
        for text, handle in zip(texts, handles, strict=True):
            result = handle.result()
            assert result.tokens == alone(model, text, 20)
            assert (result.n_prompt, result.n_gen) == (len(text) + 1, 20)
            assert result.n_cached in (0, len(text))  # of each only what memory holds still
        assert not any(handle.result().n_cached for handle in handles[:6])
        assert any(handle.result().n_cached for handle in handles[6:])
        scheduler, stats = engine._loop.scheduler, engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert scheduler.sources.n_used == 0
    results = model.generate(TEXTS[:4], max_tokens=5)
    assert [one.tokens for one in results] == [alone(model, text, 5) for text in TEXTS[:4]]


def test_several_answers_to_one_text_read_it_once(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, read = graphml.SamplingParams(temperature=1.5), []
    with model.engine(max_sequences=4, n_ctx=64) as engine:
        runner = engine._loop._runner
        assert runner is not None
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda plan: [read.extend(plan.sources), run(plan)][1])
        results = engine.submit(TEXTS[0], warm, max_tokens=8, seed=3, n=4).results()
        assert len(read) == 1
        assert len({tuple(one.tokens) for one in results}) == 4
        assert engine.submit(TEXTS[0], warm, max_tokens=8, seed=5).result().tokens == results[2].tokens
        assert len(read) == 1


def test_without_the_prefix_cache_a_text_is_read_again(model: graphml.Model) -> None:
    with model.engine(max_sequences=1, n_ctx=64, prefix_cache=False) as engine:
        found = [engine.submit(TEXTS[0], max_tokens=4).result() for _ in range(2)]
    assert [one.n_cached for one in found] == [0, 0]
    assert found[0].tokens == found[1].tokens


def test_too_few_blocks_and_cancels_leave_nothing(model: graphml.Model) -> None:
    executor = model.executor
    block = memory_needed.state_bytes(executor, {"S": 1, "C": BLOCK_SIZE})
    with model.engine(kv_memory=3 * block, max_sequences=3, n_ctx=96) as engine:
        assert engine._loop.scheduler.pool.n_blocks == 3
        with executor.lock:  # no step runs before all are there
            handles = [engine.submit(text, max_tokens=40) for text in TEXTS]
        handles[1].cancel()
        for text, handle in zip(TEXTS, handles, strict=True):
            result = handle.result()
            assert result.tokens == alone(model, text, 40)[: result.n_gen]
            assert result.n_gen == 40 or handle is handles[1]
        assert engine.stats().n_preempted > 0
        assert engine.stats().blocks_used == engine._loop.scheduler.sources.n_used == 0


# Not on wgpu, whose drivers compile for long: it runs OpenCL's kernels.
@pytest.mark.parametrize("model", [one for one in BACKENDS if one != "wgpu"], indirect=True)
def test_logits_in_shared_steps_are_those_of_a_session(model: graphml.Model) -> None:
    """On a GPU too: of what engines do, steps of several sequences alone run kernels."""
    executor, n_blocks = model.executor, 4
    runner = Runner(executor, n_blocks, 3)
    scheduler = Scheduler(BlockPool(n_blocks, BLOCK_SIZE), 3, 64)
    forced = [START, *CHANCE.integers(0, 80, 40).tolist()]
    for order, text in enumerate(TEXTS[:4]):
        source = np.array(text, np.int32)
        request = Request(np.array([START], np.int32), extra=source.tobytes(), source=source)
        scheduler.add(Sequence(request, order))
    found: dict[int, list[np.ndarray]] = {order: [] for order in range(4)}
    while scheduler:
        plan = scheduler.schedule(50)
        assert plan is not None
        logits = logits_of(runner, plan)
        scheduler.computed(plan)
        for at, sequence in plan.sampled.items():
            found[sequence.order].append(logits[at])
            if len(sequence.ids) == len(forced):
                scheduler.remove(sequence)
            else:
                sequence.ids.append(forced[len(sequence.ids)])
    for order, text in enumerate(TEXTS[:4]):
        with model.session(n_ctx=64) as session:
            session.encode(text)
            wanted = session.eval(forced, all_logits=True)
        assert nmse(np.stack(found[order]), wanted[: len(found[order])]) < CLOSE
        assert len(found[order]) == len(forced)


def test_a_text_that_can_never_be_read_is_refused_at_once(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=32) as engine:
        with pytest.raises(graphml.UsageError, match=r"source text of 1 to 32 tokens \(n_ctx\); got 33"):
            engine.submit([1] * 33)
        with pytest.raises(graphml.UsageError, match="ids from 0 to 79"):
            engine.submit([80])
        with pytest.raises(graphml.UsageError, match="wanted at least one token id"):
            engine.submit([])


def test_blocks_of_sequences_hold_nothing_of_sources(model: graphml.Model) -> None:
    """The numbers of both are given out apart: to copy or write a block leaves the texts of others alone."""
    parts = Runner(model.executor, 4, 2).parts
    assert {kind: {name.split(".")[0] for name in parts.read(kind, [1])[0]} for kind in parts.rows} == {
        "": {"cache"}, "source": {"source"}
    }  # fmt: skip
