"""Tokens of an engine: what a session samples by the same numbers, from few logits where that can be.

One GPU stands for both: tests/gpu/test_gpu_sampling.py compares the kernels of each with whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu import BACKEND

import graphml
from graphml.backend import TopRowsDevice
from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.steps import runner
from graphml.runtime.steps.sampled_rows import sampled_rows
from graphml.sampling import SamplingParams
from graphml.sampling.structured.matcher import Matcher
from tests.stories import STORIES

PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "row": SamplingParams(temperature=0.9, top_k=0, top_p=1.0),
    "top_k": SamplingParams(temperature=1.0, top_k=8),
    "top_p": SamplingParams(temperature=1.0, top_k=0, top_p=0.9),
    "penalty": SamplingParams(temperature=0.8, repeat_penalty=1.2),
}


@pytest.fixture(scope="module", params=["cpu", "opencl"])
def model(request: pytest.FixtureRequest) -> Iterator[graphml.Model]:
    with graphml.load(STORIES, request.param, n_batch=32, kv="f32") as model:
        yield model


class Outputs(dict[str, Array]):
    """Outputs that count how often the whole rows are read."""

    n_rows_read = 0

    def __getitem__(self, name: str) -> Array:
        self.n_rows_read += name == "logits"
        return super().__getitem__(name)


def test_requests_sample_what_sessions_do(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Outputs] = []

    def watched(outputs: Mapping[str, Array], *rest: Any) -> Any:
        seen.append(Outputs(outputs))
        return sampled_rows(seen[-1], *rest)

    prompt = [1, 403, 407, 261]
    with model.engine(max_sequences=5, n_ctx=64) as engine:
        monkeypatch.setattr(runner, "sampled_rows", watched)
        handles = {name: engine.submit(prompt, one, max_tokens=12, seed=11) for name, one in PARAMS.items()}
        for name, handle in handles.items():
            with model.session(n_ctx=64, seed=11) as session:
                wanted = [token.id for token in session.generate(prompt, PARAMS[name], max_tokens=12)]
            assert handle.result().tokens == wanted, name
        seen.clear()
        engine.submit(prompt, PARAMS["greedy"], max_tokens=5).result()
        engine.submit(prompt, PARAMS["top_k"], max_tokens=5).result()
    assert len(seen) == 10
    assert sum(one.n_rows_read for one in seen) == (0 if model.executor.has_top_k else 10)


class Broken(Matcher):
    """A structure with a mistake of its own."""

    def __init__(self) -> None:
        """It needs no vocabulary."""

    def catch_up(self, ids: Any, n: int) -> None:
        raise ValueError("a mistake in a structure")


def test_any_error_of_a_structure_fails_its_own_request() -> None:
    row = np.arange(8, dtype=np.float32)
    params = SamplingParams(temperature=0)
    sequences = [Sequence(Request(np.array([1], np.int32), params), order) for order in (0, 1)]
    sequences[0].matcher = Broken()
    device = BACKEND.open(1)
    assert isinstance(device, TopRowsDevice)
    of = dict(enumerate(sequences))
    error, token = sampled_rows({"logits": np.stack([row, row])}, of, 8, Path(), device.top_rows)
    device.close()
    assert isinstance(error, ValueError)
    assert token == 7


def test_a_row_that_is_no_numbers_fails_its_own_request() -> None:
    good, bad = np.zeros((2, 8), np.float32)
    good[3] = 1
    bad[5] = np.nan
    sequences = [Sequence(Request(np.array([1], np.int32), SamplingParams()), order) for order in (0, 1)]
    of = dict(enumerate(sequences))
    token, error = sampled_rows({"logits": np.stack([good, bad])}, of, 8, Path("m.gguf"))
    assert token == 3
    assert isinstance(error, WeightsError)
    assert "nan" in str(error).lower()
    assert "m.gguf" in str(error)
