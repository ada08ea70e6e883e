"""Decoding in one engine: the steps that are timed, on a small model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from graphml.bench.runner import BenchRunner, EngineDecoding
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import BackendError
from tests import tiny_model

Test.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, "cpu", threads=2) as model:
        yield model


@pytest.mark.parametrize("count", [1, 3])
def test_steps_are_timed_in_which_all_sequences_generate(model: graphml.Model, count: int) -> None:
    """Twice the tokens take longer, of whatever number of sequences; and it is at rest between the runs."""
    decoding = EngineDecoding(model, Test(0, 6, 8, count, sampled=True))
    try:
        taken = {n_gen: min(decoding.run(n_gen) for _ in range(3)) for n_gen in (1, 40)}
        assert 0 < 2 * taken[1] < taken[40]
        stats = decoding._engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used, stats.hit_tokens) == (0, 0, 0, 0)
    finally:
        decoding.close()


def test_prompts_differ(model: graphml.Model) -> None:
    decoding = EngineDecoding(model, Test(0, 6, 8, 3, sampled=True))
    decoding.close()
    assert len({tuple(ids) for ids in decoding._prompts.tolist()}) == 3


def test_a_context_that_is_too_small_is_an_error(model: graphml.Model) -> None:
    """Sequences that ended early would make the steps cheaper."""
    decoding = EngineDecoding(model, Test(0, 6, model.n_ctx - 6, 2, sampled=True))
    try:
        with pytest.raises(BackendError, match="wanted 6 steps with a token of each of 2 sequences; got "):
            decoding.run(6)
    finally:
        decoding.close()


def test_the_runner_times_sampled_tests_and_their_bound(path: Path) -> None:
    runner = BenchRunner(SideParameters("graphml", str(path), "cpu", 2))
    try:
        for test in (Test(0, 4, 8, 2, sampled=True), Test(0, 4), Test(0, 4, 8, 1, sampled=True)):
            assert runner.prepare(test).n_bytes > 0
            assert runner.run() > 0
            assert sum(runner.bound(1e10, 1e-3).values()) == pytest.approx(1.0, abs=0.2)
    finally:
        runner.close()
