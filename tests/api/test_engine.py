"""Requests that share an engine: each gets its tokens, whatever the others do, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import graphml
from graphml.api.engine import Engine
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed
from tests import tiny_model
from tests.stories import STORIES
from tests.young_garbage import kept_young

PROMPTS = [[1, 403, 407, 261], [1, 410], [1, *range(300, 340)], [1, 403, 407, 300], [1, 350, 351], [5]]


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=2, n_batch=32, kv="f32") as model:
        yield model


@pytest.fixture
def engine(model: graphml.Model) -> Iterator[Engine]:
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        yield engine
        at_rest(engine)


def at_rest(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.blocks_free == engine._loop.scheduler.pool.n_blocks


@contextmanager
def steps_on_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Within, each step waits for a release; afterwards none does."""
    runner, steps = engine._loop._runner, threading.Semaphore(0)
    assert runner is not None
    run = runner.run

    def on_request(plan: StepPlan) -> Computed:
        steps.acquire()
        return run(plan)

    monkeypatch.setattr(runner, "run", on_request)
    try:
        yield steps
    finally:
        steps.release(1000)


def alone(model: graphml.Model, ids: list[int], max_tokens: int = 20) -> list[int]:
    with model.session(n_ctx=128) as session:
        return [token.id for token in session.generate(ids, max_tokens=max_tokens)]


def test_each_request_gets_what_it_gets_alone(model: graphml.Model, engine: Engine) -> None:
    handles = [engine.submit(ids, max_tokens=20) for ids in PROMPTS]
    for ids, handle in zip(PROMPTS, handles, strict=True):
        result = handle.result()
        assert result.tokens == alone(model, ids)
        assert result.stop_reason == "length"
        assert (result.n_prompt, result.n_gen) == (len(ids), 20)
        assert [token.id for token in handle] == result.tokens  # again, for a second reader
        assert "".join(token.piece for token in handle) == result.text


def test_a_text_is_encoded_and_a_batch_of_any_size_comes_back_in_order(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Once upon a time", "The dog", "Lily"] * 4
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(model, "_progress", lambda what, done, total: told.append((done, total)))
    results = model.generate(texts, max_tokens=4)
    assert [one.tokens for one in results[:3]] == [alone(model, model.encode(text), 4) for text in texts[:3]]
    assert [one.tokens for one in results] == [one.tokens for one in results[:3]] * 4
    assert told[-1] == (12, 12)
    assert model.generate([]) == []


def test_what_was_computed_before_is_found(engine: Engine) -> None:
    prompt = [1, *range(300, 390)]
    first = engine.submit(prompt, max_tokens=4).result()
    second = engine.submit([*prompt, 7], max_tokens=4).result()
    assert (first.n_cached, second.n_cached) == (0, 91)
    assert engine.stats().hit_tokens == 91


def test_stats_count_steps_and_kept_blocks(engine: Engine) -> None:
    empty = engine.stats()
    assert (empty.n_steps, empty.step_s, empty.step_p50_s, empty.rows_per_step) == (0, 0.0, 0.0, 0.0)
    engine.submit([1, *range(300, 331)], max_tokens=2).result()
    stats = engine.stats()
    assert (stats.n_steps, stats.blocks_kept, stats.blocks_evicted) == (2, 2, 0)  # 33 ids
    assert stats.rows_per_step == (32 + 1) / 2
    assert (empty.sequences_per_step, stats.sequences_per_step) == (0.0, 1.0)
    assert min(stats.step_s, stats.step_p50_s) > 0
    for first in range(20):  # 4 sequences of 128 tokens are 16 blocks
        engine.submit([first, *range(300, 331)], max_tokens=1).result()
    stats = engine.stats()
    assert (stats.blocks_kept, stats.blocks_evicted) == (16, 5)


def test_steps_are_recorded_while_somebody_asks(engine: Engine) -> None:
    engine.submit([1, 403], max_tokens=2).result()
    with engine.timeline() as timeline:
        assert timeline.steps == []
        with pytest.raises(graphml.UsageError, match="recorded already"), engine.timeline():
            pass
        engine.submit([1, *range(300, 340)], max_tokens=3).result()
        rows = [one.n_rows for one in timeline.steps]
        assert (sum(rows), rows[-2:]) == (40 + 2, [1, 1])  # the first id is known
    engine.submit([1, 403], max_tokens=2).result()
    assert len(timeline.steps) == len(rows)
    with pytest.raises(graphml.UsageError, match="limit: wanted a number of steps"), engine.timeline(0):
        pass


def test_without_the_prefix_cache_nothing_is_found(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=128, prefix_cache=False) as engine:
        found = [engine.submit([1, *range(300, 390)], max_tokens=4).result() for _ in range(2)]
        assert [one.n_cached for one in found] == [0, 0]
        assert found[0].tokens == found[1].tokens


def test_several_continuations_of_one_prompt_share_it(engine: Engine) -> None:
    warm = graphml.SamplingParams(temperature=1.5)
    handle = engine.submit([1, *range(300, 390)], warm, max_tokens=12, seed=3, n=4)
    results = handle.results()
    assert [one.n_cached for one in results] == [0, 90, 90, 90]  # all but the last id, which each computes
    assert len({tuple(one.tokens) for one in results}) == 4
    for index, one in enumerate(results):
        assert [token.id for token in handle if token.index == index] == one.tokens
    again = engine.submit([1, *range(300, 390)], warm, max_tokens=12, seed=5).result()
    assert again.tokens == results[2].tokens


def test_end_stop_strings_and_a_full_context_end_it(model: graphml.Model, engine: Engine) -> None:
    text = engine.submit("Once upon a time", max_tokens=12).result().text
    word = text[6:12]
    stopped = engine.submit("Once upon a time", graphml.SamplingParams(stop=(word,)), max_tokens=12).result()
    assert stopped.stop_reason == "stop"
    assert stopped.text == text[: text.index(word)]
    third = alone(model, PROMPTS[0])[2]
    ended = engine.submit(
        PROMPTS[0], graphml.SamplingParams(stop_tokens=frozenset({third})), max_tokens=12
    ).result()
    assert (ended.stop_reason, ended.n_gen) == ("stop", alone(model, PROMPTS[0]).index(third))
    full = engine.submit([1, *range(300, 420)]).result()
    assert (full.stop_reason, full.n_gen) == ("context", 128 - 121)
    assert engine.submit(PROMPTS[0], max_tokens=0).result().stop_reason == "length"


def test_cancelled_and_late_requests_end_with_what_they_have(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with steps_on_request(engine, monkeypatch) as steps:
        steps.release(3)
        handle = engine.submit(PROMPTS[0])
        for count, _ in enumerate(handle, 1):
            if count == 3:
                handle.cancel()
                steps.release(100)
        assert handle.result().stop_reason == "cancel"
        assert handle.result().n_gen in (3, 4)  # a step may have begun before the cancel came
        handle.cancel()
    assert engine.submit(PROMPTS[0], deadline=1e-6).result().stop_reason == "deadline"


def test_tokens_come_to_event_loops_and_threads_alike(model: graphml.Model, engine: Engine) -> None:
    async def read(ids: list[int]) -> list[int]:
        return [token.id async for token in engine.submit(ids, max_tokens=20)]

    async def read_all() -> list[list[int]]:
        return list(await asyncio.gather(*map(read, PROMPTS)))

    assert asyncio.run(read_all()) == [alone(model, ids) for ids in PROMPTS]


def test_many_threads_and_cancels_leave_the_pool_as_it_was(model: graphml.Model, engine: Engine) -> None:
    chance = random.Random(1)
    wrong: list[str] = []

    def client(number: int) -> None:
        ids = [1, 300 + number, 301 + number]
        handle = engine.submit(ids, max_tokens=chance.randint(1, 20), key=f"{number % 3}")
        if number % 2:
            handle.cancel()
        if handle.result().tokens != expected[number][: handle.result().n_gen]:
            wrong.append(f"{number}")

    expected = [alone(model, [1, 300 + number, 301 + number]) for number in range(40)]
    threads = [threading.Thread(target=client, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sessions_go_on_beside_an_engine(model: graphml.Model, engine: Engine) -> None:
    expected = alone(model, PROMPTS[2])
    handle = engine.submit(PROMPTS[0], max_tokens=60)
    assert alone(model, PROMPTS[2]) == expected
    assert handle.result().tokens == alone(model, PROMPTS[0], 60)


def test_a_step_that_raises_fails_its_requests_and_no_other(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        runner, left = engine._loop._runner, [3]
        assert runner is not None
        run = runner.run

        def failing(plan: StepPlan) -> Computed:
            left[0] -= 1
            if not left[0]:
                raise OSError("the device is gone")
            return run(plan)

        monkeypatch.setattr(runner, "run", failing)
        broken = engine.submit(PROMPTS[0], max_tokens=20, n=3)  # of which one waits
        with pytest.raises(OSError, match="the device is gone"):
            broken.result()
        with pytest.raises(OSError, match="the device is gone"):
            list(broken)
        assert engine.submit(PROMPTS[0], max_tokens=20).result().tokens == alone(model, PROMPTS[0])
        at_rest(engine)


def test_what_can_never_run_is_refused_at_once(engine: Engine) -> None:
    for given, text in (
        ({"prompt": []}, "wanted at least one token id"),
        ({"prompt": [1] * 128}, "prompt: wanted 1 to 127 ids.*got 128"),
        ({"prompt": [-1]}, "wanted ids from 0 to"),
        ({"prompt": [1], "n": 0}, "n: wanted 1 to 128; got 0"),
        ({"prompt": [1], "key": [1]}, r"key: wanted a text, or None; got \[1\]"),
        ({"prompt": [1] * 128, "max_tokens": 0}, "prompt: wanted 1 to 127 ids"),
        ({"prompt": [1], "priority": "high"}, "priority: wanted a whole number; got 'high'"),
        ({"prompt": [1], "deadline": -1}, "deadline: wanted seconds above 0, or None; got -1"),
        ({"prompt": [1], "max_tokens": -1}, "max_tokens: wanted a whole number of at least 0"),
    ):
        with pytest.raises(graphml.UsageError, match=text):
            engine.submit(**given)


def test_models_whose_tokens_see_later_ones_are_refused(tmp_path: Path) -> None:
    path, both_ways = tiny_model.write(tmp_path / "model.gguf"), {"llama.attention.causal": False}
    with (
        graphml.load(path, "reference", override_kv=both_ways) as model,
        pytest.raises(graphml.UsageError, match=r"llama does not continue a text token by token.*`eval`"),
    ):
        model.engine()


def test_memory_is_given_in_bytes_or_as_a_share(model: graphml.Model) -> None:
    with model.engine(kv_memory=200_000, max_sequences=2) as engine:
        assert engine.n_ctx < model.n_ctx
        prompt = [1] * (engine.n_ctx - 4)
        handles = [engine.submit([*prompt, number]) for number in (300, 301)]
        assert [handle.result().stop_reason for handle in handles] == ["context", "context"]
        at_rest(engine)
    for wrong in (0, -1, "1G", True, 100, float("inf"), float("nan")):
        with pytest.raises(graphml.UsageError, match="kv_memory: wanted"):
            model.engine(kv_memory=wrong)  # type: ignore[arg-type]
    with pytest.raises(graphml.UsageError, match=r"max_sequences: wanted 1 to n_batch = 32; got 33"):
        model.engine(max_sequences=33)


def test_a_closed_engine_frees_its_blocks_though_a_handle_is_kept(model: graphml.Model) -> None:
    with model.engine(max_sequences=1) as engine:
        handle = engine.submit("Once", max_tokens=2)
        handle.result()
        runner = engine._runner
        assert runner() is not None
    gc.collect()
    assert runner() is None
    assert handle.results(0)[0].n_gen == 2


def test_a_closed_engine_ends_and_refuses(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = model.engine(max_sequences=2, n_ctx=128)
    with steps_on_request(engine, monkeypatch) as steps:
        running = engine.submit(PROMPTS[0])
        engine._loop.ask_to_close()
        steps.release()
        assert running.result().stop_reason == "cancel"
    engine.close()
    engine.close()
    assert engine._loop._runner is None
    for most in (None, 0):
        with pytest.raises(graphml.UsageError, match="engine: it was closed"):
            engine.submit(PROMPTS[0], max_tokens=most)


def test_a_handle_keeps_its_engine(model: graphml.Model) -> None:
    with kept_young() as collect:
        handle = model.engine(max_sequences=2, n_ctx=128).submit(PROMPTS[0], max_tokens=20)
        collect()
    assert handle.result().tokens == alone(model, PROMPTS[0])
    tokens = [
        token.id for token in model.engine(max_sequences=2, n_ctx=128).submit(PROMPTS[0], max_tokens=20)
    ]
    assert tokens == handle.result().tokens


def test_an_engine_that_is_collected_ends_and_waits_for_nobody(model: graphml.Model) -> None:
    """The collector runs anywhere: where the engine's own thread needs what the collecting one holds, too."""
    with kept_young() as collect:
        engine = model.engine(max_sequences=2, n_ctx=128)
        stream = engine.submit(PROMPTS[0])._stream
        loop = engine._loop
        with model.executor.lock, loop.lock:
            del engine
            collect()
    assert stream.wait()[0].stop_reason in ("cancel", "context")
    loop.close()


def test_no_limit_between_tokens(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=128, target_itl_ms=float("inf")) as engine:
        handles = [engine.submit(ids, max_tokens=20) for ids in (PROMPTS[2], PROMPTS[0])]
        assert [handle.result().tokens for handle in handles] == [
            alone(model, PROMPTS[2]), alone(model, PROMPTS[0])
        ]  # fmt: skip


def test_one_left_open_keeps_no_process_alive() -> None:
    code = (
        f"import graphml\nengine = graphml.load({str(STORIES)!r}).engine(n_ctx=128)\n"
        "handle = engine.submit([1, 2])\nprint(next(iter(handle)).id)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().isdigit()


def test_prefixes_are_shared_among_requests_of_equal_salt_only(engine: Engine) -> None:
    prompt = [1, *range(300, 370)]
    cached = [engine.submit(prompt, max_tokens=1, salt=salt).result().n_cached for salt in (b"", b"a", b"a")]
    assert cached == [0, 0, 70]
    engine.submit(prompt, max_tokens=1, lora=[]).result()  # the bytes of a salt are never those of adapters
    assert engine.submit(prompt, max_tokens=1, salt=b"()").result().n_cached == 0
