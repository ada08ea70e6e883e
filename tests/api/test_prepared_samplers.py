"""What depends on a request's settings alone is worked out by who submits it, not by the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import graphml
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.chain import filter_order, sampler
from graphml.sampling.filters import dry
from tests import tiny_model

DRY = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("a", "bc"), dry_allowed_length=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with graphml.load(path, backend="cpu", threads=1, kv="f32") as opened:
        yield opened


def test_breakers_are_found_where_a_request_is_submitted(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return dry._prepared(*arguments)

    chain = tuple(
        replace(filter_, prepare=noted) if filter_.name == "dry" else filter_
        for filter_ in filter_order.CHAIN
    )
    monkeypatch.setattr(filter_order, "CHAIN", chain)
    sampler.sampler_of.cache_clear()
    with model.engine() as engine:
        handle = engine.submit("a b c a b c a b", DRY, max_tokens=8, n=2)
        apart = engine.submit("a b c a b c a b", DRY, max_tokens=8).result().tokens
        assert [result.tokens for result in handle.results()] == [apart, apart]
    sampler.sampler_of.cache_clear()
    assert set(threads) == {threading.current_thread().name}
    assert len(threads) == 2
    assert [token.id for token in model.session().generate("a b c a b c a b", DRY, max_tokens=8)] == apart


def test_the_order_of_filters_has_a_limit() -> None:
    SamplingParams(samplers="k" * 64)
    for names in ("k" * 65, "k" * 100_000, ";".join(["top_k"] * 65)):
        with pytest.raises(UsageError, match="samplers: wanted at most 64 filters"):
            SamplingParams(samplers=names)
