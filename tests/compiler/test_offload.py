"""How many layers a GPU takes: by the user's word, by its memory; the answer is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphml.backend import Device
from graphml.compiler.offload import layer_rules, layers_that_fit, stage_counts, with_host
from graphml.errors import UsageError
from graphml.loading import discovery
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.one_text import OneText
from tests.stories import STORIES

TOKENS = np.array([1, 403, 407, 261])
BOTH = "reference,cpu"


def test_the_last_layers_go_to_the_first_backend() -> None:
    assert layer_rules(2, 5, ["gpu", "cpu"]) == "cpu:layers.0-2,gpu:layers.3-4"
    assert layer_rules(0, 5, ["gpu", "cpu"]) == "cpu:layers.0-4"
    assert layer_rules(5, 5, ["gpu", "cpu"]) == layer_rules(99, 5, ["gpu", "cpu"]) == ""
    with pytest.raises(UsageError, match="wanted a whole number of at least 0; got -1"):
        layer_rules(-1, 5, ["gpu", "cpu"])


def test_one_backend_is_joined_by_the_cpu() -> None:
    assert with_host("gpu", 3) == "gpu,cpu"
    assert with_host("gpu", None) == "gpu"
    assert with_host("gpu,reference", 3) == "gpu,reference"
    with pytest.raises(UsageError, match=r"backend that drives a GPU.*got 'cpu'"):
        with_host("cpu", 3)


def test_as_many_layers_as_fit() -> None:
    layers = [100, 100, 50, 100]
    assert layers_that_fit(layers, 20, 500) == 4
    assert layers_that_fit(layers, 20, 450) == 3
    assert layers_that_fit(layers, 20, 149) == 0
    assert layers_that_fit(layers, 20, 10) == 0


def test_stages_are_filled_alike() -> None:
    """Four fifths of each room at most; the first has what is before all layers, the last what is behind."""
    assert stage_counts([10] * 4, 0, 0, [100, 100]) == [2, 2]
    assert stage_counts([10] * 4, 0, 0, [100, 100, 100]) == [2, 1, 1]
    assert stage_counts([10] * 8, 0, 0, [100, 300]) == [2, 6]
    assert stage_counts([10] * 8, 30, 10, [100, 100]) == [3, 5]
    assert stage_counts([10] * 8, 0, 40, [100, 100]) == [6, 2]
    assert stage_counts([10] * 8, 0, 0, [50, 50]) == [4, 4]
    assert stage_counts([10] * 8, 0, 0, [50, 49]) is None
    assert stage_counts([10] * 8, 0, 0, [1000, 9]) is None  # not even one layer
    assert stage_counts([10], 0, 0, [1000, 1000]) is None


def logits(executor: Executor) -> np.ndarray:
    return OneText(executor).step(TOKENS)


@pytest.mark.parametrize(("count", "states"), [(0, 0), (2, 4), (5, 10), (None, 10)])
def test_a_split_model_answers_the_same(count: int | None, states: int) -> None:
    split = open_executor(STORIES, LoadOptions(BOTH, 2, kv="f32", n_batch=8, gpu_layers=count))
    whole = open_executor(STORIES, LoadOptions("cpu", 2, kv="f32", n_batch=8))
    np.testing.assert_allclose(logits(split), logits(whole), atol=1e-4)
    placement = split.compiled(1, 1).placement
    assert placement is not None
    assert list(placement.states().values()).count("reference") == states
    assert len(split.compiled(1, 1).parts) == (1 if states in (0, 10) else 2)
    split.close()
    whole.close()


@pytest.mark.parametrize(
    ("room", "rules"),
    [(0, "cpu:layers.0-4"), (900_000, "cpu:layers.0-1,reference:layers.2-4"), (1 << 30, "")],
)
def test_memory_decides_where_nobody_does(monkeypatch: pytest.MonkeyPatch, room: int, rules: str) -> None:
    plain, find = discovery.backend("reference"), discovery.backend

    def limited(threads: int | None) -> Device:
        device = plain.open(threads)
        device.memory_bytes = room  # type: ignore[attr-defined]
        return device

    monkeypatch.setattr(
        discovery, "backend", lambda name: replace(plain, open=limited) if name == "reference" else find(name)
    )
    executor = open_executor(STORIES, LoadOptions(BOTH, 2, n_batch=8))
    assert executor.options.place == rules
    executor.close()
