"""The default model says what llama.cpp says: tokens, greedy continuations, a chat, perplexity's method.

The model comes through graphml's own door, from the package index into the cache folder. A continuation is
compared up to the first near tie, which another order of summation may flip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.loading import discovery, fetch

pytestmark = pytest.mark.model

RECORD = json.loads((Path(__file__).parents[1] / "data" / "smollm2-greedy.json").read_text(encoding="utf-8"))
PROMPTS: list[dict[str, Any]] = RECORD["prompts"]
NEAR_TIE = 0.15


def before_tie(row: dict[str, Any]) -> list[int]:
    """The greedy ids up to the first step at which two tokens were nearly alike."""
    ties = (index for index, gap in enumerate(row["top2_gap"]) if gap < NEAR_TIE)
    expected: list[int] = row["greedy"][: next(ties, len(row["greedy"]))]
    return expected


def decided(row: dict[str, Any], exact: graphml.Model) -> list[int]:
    """The same up to the first step that int8 activations decide, in float32 another id or nearly so.

    There a change of one part in a million moves the two logits by 0.2 against each other.
    """
    expected = before_tie(row)
    with exact.session(n_ctx=128) as session:
        logits = session.eval(row["ids"] + expected, all_logits=True)[len(row["ids"]) - 1 : -1]
    for step, (token, ranked) in enumerate(zip(expected, logits, strict=True)):
        if ranked[token] - np.delete(ranked, token).max() < NEAR_TIE:
            return expected[:step]
    return expected


COMPARED = [row for row in PROMPTS if before_tie(row)]

GPUS = [name for name in ("opencl", "wgpu") if discovery.backend(name).unavailable() is None]
Opener = Callable[[str, int | None], graphml.Model]


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return fetch.fetch("smollm2")
    except graphml.DownloadError as error:
        pytest.skip(f"offline: {error}")


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[Opener]:
    """A model by backend and threads; the last two stay open."""
    models: dict[tuple[str, int | None], graphml.Model] = {}

    def load(backend: str, threads: int | None) -> graphml.Model:
        key = backend, threads
        if key not in models:
            if len(models) == 2:
                models.pop(next(iter(models))).close()
            models[key] = graphml.load(path, backend, threads)
        return models[key]

    yield load
    for model in models.values():
        model.close()


@pytest.fixture(scope="module")
def wanted(path: Path) -> dict[str, list[int]]:
    """The ids that are compared, by prompt; the model in float32 takes a gigabyte, and is closed at once."""
    with graphml.load(path, "cpu", fuse="none") as exact:
        return {row["prompt"]: decided(row, exact) for row in COMPARED}


@pytest.mark.parametrize("row", PROMPTS, ids=[row["prompt"][:20] for row in PROMPTS])
def test_prompts_are_encoded_alike(path: Path, row: dict[str, Any]) -> None:
    assert graphml.load_tokenizer(path).encode(row["prompt"], parse_special=True) == row["ids"]


@pytest.mark.parametrize("row", COMPARED, ids=[row["prompt"][:20] for row in COMPARED])
@pytest.mark.parametrize("threads", [1, 2])
def test_greedy_ids_are_llama_cpps(
    opened: Opener, threads: int, row: dict[str, Any], wanted: dict[str, list[int]]
) -> None:
    expected = wanted[row["prompt"]]
    assert expected
    session = opened("cpu", threads).session(n_ctx=128)
    found = [token.id for token in session.generate(row["ids"], max_tokens=len(expected))]
    assert found == expected


@pytest.mark.parametrize("backend", GPUS)
def test_gpus_give_the_same_ids(opened: Opener, backend: str, wanted: dict[str, list[int]]) -> None:
    """Activations are float32 there, as they are where nothing is fused; a prompt and what follows it.

    The shortest: each token of these weights takes a driver on the processor half a second, and the kernels
    of longer batches are the same. The last token has read what two single steps wrote, behind a batch.
    """
    row = min((row for row in COMPARED if len(wanted[row["prompt"]]) >= 4), key=lambda row: len(row["ids"]))
    expected = wanted[row["prompt"]][:4]
    assert len(row["ids"]) > 4
    session = opened(backend, None).session(n_ctx=128)
    found = [token.id for token in session.generate(row["ids"], max_tokens=len(expected))]
    assert found == expected


# Half a minute for all of them, in NumPy; the CPU is compared for each.
@pytest.mark.parametrize("row", COMPARED[::3], ids=[row["prompt"][:20] for row in COMPARED[::3]])
def test_the_reference_prefers_the_same_ids(opened: Opener, row: dict[str, Any]) -> None:
    expected = before_tie(row)
    # In one batch, which is much faster there: after each prefix, the next id is the most likely one.
    session = opened("reference", None).session(n_ctx=128)
    logits = session.eval(row["ids"] + expected, all_logits=True)
    found = logits[len(row["ids"]) - 1 : -1].argmax(axis=1)
    assert found.tolist() == expected


def test_most_of_the_record_is_compared() -> None:
    assert sum(len(before_tie(row)) for row in PROMPTS) > 100


def test_it_answers_questions(opened: Opener) -> None:
    # Answers whose every token leads clearly; it knows less than it says of capitals.
    chat = opened("cpu", 2).chat(max_tokens=32)
    chat.add_user("What is 2+2?")
    assert chat.render_turn().startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert "4" in chat.respond()
    assert chat.session.stop_reason == "end"
    chat.add_user("How many days are in a week?")
    question = "<|im_start|>user\nHow many days are in a week?<|im_end|>\n"
    assert chat.render_turn() == f"<|im_end|>\n{question}<|im_start|>assistant\n"
    assert "7" in chat.respond()
