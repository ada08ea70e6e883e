"""LoRA adapters of a running server: scales of all requests, of single ones, and many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests.adapter_files import random_pairs, write_adapter
from tests.server.running_server import Running, running

TARGETS = ("blk.0.attn_q.weight", "blk.1.ffn_up.weight", "blk.2.attn_output.weight", "blk.3.ffn_down.weight")
PROMPT = "Once upon a time there was a little girl who lived in a house. " * 2
ASKED: dict[str, Any] = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "return_tokens": True}
SCALES: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 2.0))


@pytest.fixture(scope="module")
def paths(stories: graphml.Model, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {name: stories.executor.file.tensors[name].shape for name in TARGETS}
    pairs = [random_pairs(shapes, rank=4, seed=seed) for seed in (1, 2)]
    return [write_adapter(folder / f"adapter{i}.gguf", one) for i, one in enumerate(pairs, 1)]


@pytest.fixture(scope="module")
def wanted(stories: graphml.Model, paths: list[Path]) -> dict[tuple[float, float], list[int]]:
    """The ids that an engine gives with both scales."""
    found = {}
    with stories.engine(max_sequences=1, n_ctx=256) as engine:
        for scales in SCALES:
            lora = [(str(path), scale) for path, scale in zip(paths, scales, strict=True)]
            found[scales] = engine.submit(PROMPT, max_tokens=12, lora=lora).result().tokens
    assert len({tuple(one) for one in found.values()}) == len(SCALES)
    return found


@pytest.fixture
def server(stories: graphml.Model, paths: list[Path]) -> Iterator[Running]:
    loras = ((paths[0], 1.0), (paths[1], 0.0))
    with running(ServerOptions(parallel=4, n_ctx=256, loras=loras), stories) as found:
        yield found


def scaled(*scales: float) -> list[dict[str, float]]:
    return [{"id": number, "scale": scale} for number, scale in enumerate(scales)]


def test_scales_of_all_requests_are_those_of_the_flags_until_they_are_set(
    server: Running, wanted: dict[tuple[float, float], list[int]]
) -> None:
    def ids() -> list[int]:
        found: list[int] = server.post("/completion", ASKED).json()["tokens"]
        return found

    shown = server.http.get("/lora-adapters").json()
    assert [(one["path"], one["scale"]) for one in shown] == [("adapter1.gguf", 1.0), ("adapter2.gguf", 0.0)]
    assert ids() == wanted[1.0, 0.0]
    second = [{"id": 1, "scale": 1}]
    for given, scales in ((scaled(0.5, 2.0), (0.5, 2.0)), (second, (0.0, 1.0)), ([], (0.0, 0.0))):
        assert server.post("/lora-adapters", given).json() == {"success": True}
        assert ids() == wanted[scales]
        assert [one["scale"] for one in server.http.get("/lora-adapters").json()] == list(scales)
    assert server.post("/lora-adapters", [{"id": 2, "scale": 1}]).status_code == 400


def test_requests_with_adapters_of_their_own_run_beside_each_other(
    server: Running, wanted: dict[tuple[float, float], list[int]]
) -> None:
    """Of one prompt, whose computed cells are not shared by others than those of the same scales."""
    scales = [*SCALES, *SCALES, *SCALES]
    asked = [{**ASKED, "lora": scaled(*one)} for one in scales]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda one: server.post("/completion", one).json(), asked))
    assert [one["tokens"] for one in found] == [wanted[one] for one in scales]
    again = server.post("/completion", asked[1]).json()
    assert again["tokens"] == wanted[SCALES[1]]
    assert again["timings"]["cache_n"] > 0
    assert server.at_rest()
