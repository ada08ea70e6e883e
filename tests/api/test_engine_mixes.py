"""Random mixes of what requests may ask for: each is what it is alone, and nothing is left at the end."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.api.engine import Engine
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import Proposal
from tests import tiny_model
from tests.adapter_files import write_adapter

N_CTX = 96
FIVE_BLOCKS = 5 * 32 * 512  # bytes: of 32 tokens, each 512 bytes in two layers of float32
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["anna", "bob"]}, "status": {"const": "completed successfully"}},
    "required": ["name", "status"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "the hello world is " ("round" | "flat") " and " [a-c]+ " of worlds"'
STRUCTURES: list[dict[str, Any]] = [
    {},
    {},
    {"json_schema": SCHEMA},
    {"grammar": GRAMMAR, "stop": ("lat", "nd")},
    {"regex": "abc(def|ghi)+ hello world, (x|y)+"},
    {"grammar": GRAMMAR, "grammar_lazy": True, "grammar_triggers": ("the",)},
    {"json_schema": SCHEMA, "grammar_after": "e"},
]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.1, "top_k": 12, "rng": "llama.cpp"},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 0.9, "repeat_penalty": 1.2, "dry_multiplier": 0.6, "logit_bias": {40: 3.0}},
]


class Guesses:
    """Drafts of what requests became alone, some with a wrong id."""

    costs_time = False

    def __init__(self, texts: list[list[int]], numbers: random.Random) -> None:
        self._texts, self._numbers = texts, numbers

    def propose(self, ids: list[int], count: int) -> Proposal:
        held = list(ids)
        found = next((one[len(held) :] for one in self._texts if one[: len(held)] == held), [])[:count]
        if found and self._numbers.random() < 0.5:
            found[self._numbers.randrange(len(found))] = 50
        return Proposal(found, "long")

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixes")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[graphml.Model]:
    path = tiny_model.write(folder / "model.gguf")
    with graphml.load(path, "cpu", threads=1, n_batch=64, kv="f32", deterministic=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Path:
    numbers, width = np.random.default_rng(1), tiny_model.WIDTH
    a, b = (numbers.standard_normal(shape, np.float32) for shape in ((2, width), (width, 2)))
    return write_adapter(folder / "adapter.gguf", {"blk.0.attn_q.weight": (a, b)})


def asked(r: random.Random, adapter: Path) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
    """Prompt, sampling parameters and other arguments."""
    common = list(range(10, 10 + r.choice([0, 33, 48])))
    prompt = [1, *common, *(r.randrange(3, 250) for _ in range(r.choice([0, 1, 8, 30])))]
    params = {**r.choice(STRUCTURES), **r.choice(SAMPLING)}
    params |= {name: r.choice([None, None, 0, 2]) for name in ("logprobs", "prompt_logprobs")}
    how: dict[str, Any] = {
        "max_tokens": r.choice([None, 0, 1, 20]),
        "seed": r.randrange(99),
        "n": r.choice([1, 1, 3]),
    }
    if r.random() < 0.2:
        how |= {"guidance_scale": 2.0, "negative_prompt": [1, *range(60, 60 + r.choice([1, 40]))]}
    if r.random() < 0.2:
        how["lora"] = [(adapter, 1.0)]
    return prompt, params, how


def ended(engine: Engine, prompt: list[int], params: dict[str, Any], how: dict[str, Any]) -> Any:
    """A request that was submitted: a function that waits for what it became."""
    handle = engine.submit(prompt, SamplingParams(**params), **how)

    def wait() -> Any:
        try:
            results = handle.results(60)
        except UsageError as error:  # a structure that the text cannot follow
            return str(error)
        return [(one.tokens, one.text, one.stop_reason, one.logprobs, one.prompt_logprobs) for one in results]

    return wait


@pytest.mark.parametrize("seed", range(4))
def test_a_request_is_what_it_is_alone(
    model: graphml.Model, adapter: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    r = random.Random(seed)
    requests = [asked(r, adapter) for _ in range(8)]
    with model.engine(max_sequences=4, n_ctx=N_CTX, prefix_cache=False) as engine:
        alone = [ended(engine, *one)() for one in requests]
    texts = [
        [*prompt, *one[0]]
        for (prompt, _, _), found in zip(requests, alone, strict=True)
        for one in (found if isinstance(found, list) else ())
    ]
    monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", lambda: Guesses(texts, r))
    monkeypatch.setattr(
        "graphml.runtime.blocks.drafting.draft_lengths",
        lambda n, offers, of, most, again: lengths([count for count, _ in offers], most - n),
    )
    few: dict[str, Any] = {"kv_memory": FIVE_BLOCKS} if seed % 2 else {}
    with model.engine(max_sequences=[1, 2, 6][seed % 3], n_ctx=N_CTX, **few) as engine:
        with engine.timeline() as timeline:
            waits, others = [], []
            for prompt, params, how in requests:
                drafts = "ngram" if r.random() < 0.7 and "guidance_scale" not in how else "none"
                waits.append(ended(engine, prompt, {**params, "spec_type": drafts}, how))
                if r.random() < 0.5:  # somebody else, who goes soon
                    prompt, params, how = asked(r, adapter)
                    other = engine.submit(prompt, SamplingParams(**params), **how, deadline=0.02)
                    others.append(other)
                    if r.random() < 0.5:
                        other.cancel()
            assert [wait() for wait in waits] == alone
            for other in others:
                with contextlib.suppress(UsageError):
                    other.results(60)
            assert timeline.steps
            assert engine.snapshot().sequences == ()
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert engine.failure is None


def lengths(counts: list[int], room: int) -> list[int]:
    """As many rows of drafts as there is room for, the first ones first."""
    before = itertools.accumulate(counts, initial=0)
    return [max(0, min(count, room - start)) for count, start in zip(counts, before, strict=False)]


@pytest.mark.parametrize("regex", ["(a|b)" + 40 * "hello world, ", "((round|flat) hello world, )+"])
def test_forced_text_is_the_same_in_a_session_and_with_drafts(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch, regex: str
) -> None:
    """Also more of it than is forced at a time, and up to the end of a context."""
    n_accepted, bias = 0, {tiny_model.END: -100.0}
    params = SamplingParams(temperature=1.0, regex=regex, logit_bias=bias)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.draft_lengths", lambda n, offers, *_: [offers[0][0]])
    with model.engine(max_sequences=1, n_ctx=N_CTX) as engine:
        for seed in range(4):
            with model.session(n_ctx=N_CTX, seed=seed) as session:
                wanted = [token.id for token in session.generate([1, 2], params)]
            guesses = Guesses([[1, 2, *wanted]], random.Random(seed))
            monkeypatch.setattr("graphml.api.draft_choice.NgramDrafter", lambda guesses=guesses: guesses)
            for drafts in ("none", "ngram"):
                result = engine.submit([1, 2], replace(params, spec_type=drafts), seed=seed).result(60)
                assert result.tokens == wanted, (seed, drafts)
                n_accepted += result.n_accepted
    assert n_accepted or "flat" not in regex
