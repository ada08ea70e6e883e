"""`graphml.sampling.chain`: llama.cpp's tokens, its details, copies, and errors that name the entry."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.sampling import PeekableRandom, SamplingParams, chain, make_sampler
from graphml.sampling.candidates.mersenne_twister import MersenneTwister
from tests.looped import looped
from tests.sampling.words import PAIRS

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "llama_cpp_samplers.jsonl").read_text().splitlines()
]
"""Tokens that llama.cpp 0.5.0 itself has sampled by these chains, on these logits."""


LIKE = {"mirostat_tau": 4, "mirostat_eta": 0.2}


def logits_of(case: dict[str, Any], step: int) -> Any:
    spec = case["logits"]
    generator = np.random.default_rng(spec["seed"] + (step if case["fresh"] else 0))
    row = (generator.standard_normal(spec["n"]) * spec["scale"]).astype(np.float32)
    for token, value in spec.get("set", []):
        row[token] = float(value)
    return row


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_a_chain_samples_the_tokens_of_llama_cpp(case: dict[str, Any]) -> None:
    sampler = graphml.sampling.chain(case["entries"], case["seed"], n_vocab=case["logits"]["n"])
    for token in case["history"]:
        sampler.accept(token)
    found = []
    for step in range(len(case["drawn"])):
        found.append(sampler.draw(logits_of(case, step)).token)
        sampler.accept(found[-1])
    assert found == case["drawn"]


def test_sampling_params_sample_them_too() -> None:
    """The same chain by `SamplingParams`, with the states and numbers of a sequence."""
    entries = [
        {"type": "penalties", "last_n": 64, "repeat": 1.2, "freq": 0.1, "present": 0.2},
        {"type": "top_n_sigma", "n": 2.5},
        {"type": "top_k", "k": 60},
        {"type": "typical", "p": 0.95, "min_keep": 1},
        {"type": "top_p", "p": 0.97, "min_keep": 1},
        {"type": "min_p", "p": 0.02, "min_keep": 1},
        {"type": "xtc", "probability": 0.5, "threshold": 0.05, "min_keep": 1},
        {"type": "temp_ext", "temp": 0.9, "delta": 0.2, "exponent": 1.5},
        {"type": "dist"},
    ]
    params = SamplingParams(
        temperature=0.9, dynatemp_range=0.2, dynatemp_exponent=1.5, top_k=60, top_p=0.97, min_p=0.02,
        min_keep=1, typical_p=0.95, xtc_probability=0.5, xtc_threshold=0.05, top_n_sigma=2.5,
        repeat_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.2, rng="llama.cpp",
    )  # fmt: skip
    sampler, numbers = make_sampler(params), PeekableRandom(77)
    other, history = chain(entries, 77, n_vocab=300), [1, 2, 3]
    for token in history:
        other.accept(token)
    for step in range(60):
        row = np.random.default_rng(step).standard_normal(300).astype(np.float32) * 2
        history.append(sampler.sample(row, history, numbers))
        assert other.draw(row).token == history[-1]
        other.accept(history[-1])


@pytest.mark.parametrize(
    ("entry", "fields"),
    [
        ({"type": "mirostat", "tau": 4, "eta": 0.2}, {"mirostat": 1, **LIKE}),
        ({"type": "mirostat_v2", "tau": 4, "eta": 0.2}, {"mirostat": 2, **LIKE}),
        ({"type": "adaptive_p", "target": 0.4, "decay": 0.9}, {"adaptive_target": 0.4}),
    ],
    ids=["mirostat", "mirostat_v2", "adaptive_p"],
)
def test_states_are_those_of_llama_cpp(entry: dict[str, Any], fields: dict[str, Any]) -> None:
    sampler = make_sampler(SamplingParams(temperature=1.0, rng="llama.cpp", **fields))
    numbers, other, history = PeekableRandom(3), chain([entry], 3, n_vocab=90), [5]
    for step in range(60):
        row = np.random.default_rng(step).standard_normal(90).astype(np.float32) * 3
        history.append(sampler.sample(row, history, numbers))
        assert other.draw(row).token == history[-1]
        other.accept(history[-1])


def test_the_mersenne_twister_is_that_of_the_standard() -> None:
    """ISO C++, [rand.predef]: the 10,000th output of a `std::mt19937` by its default seed 5489."""
    generator = MersenneTwister(5489, 9999)
    assert generator.single() == np.float32(4123659995) / np.float32(2**32)
    assert generator.n_used == 10_000
    pair = MersenneTwister(5489)
    assert pair.double() == (3499211612 + 581869302 * 2.0**32) / 2.0**64
    again = MersenneTwister.restored(pair.saved())
    assert again.double() == pair.copy().double() == pair.double()


def test_a_step_of_a_chain() -> None:
    one = chain([{"type": "top_k", "k": 2}, {"type": "greedy"}], n_vocab=4)
    found = one.draw(np.array([1, 3, 2, 0], np.float32))
    assert (found.ids.tolist(), found.logits.tolist(), found.p, found.token) == ([1, 2], [3.0, 2.0], None, 1)
    found = chain([{"type": "temp", "temp": 0}], n_vocab=3).draw(np.array([1, 3, 3], np.float32))
    assert found.logits.tolist() == [-math.inf, 3.0, -math.inf]
    assert (found.p, found.token) == (None, None)
    found = chain([{"type": "temp", "temp": 2}, {"type": "dist"}], n_vocab=2).draw(np.zeros(2, np.float32))
    assert found.p is not None
    assert found.p.tolist() == [0.5, 0.5]


def test_biases_that_forbid_all_leave_no_token() -> None:
    bias = [[0, "-inf"], [1, "-inf"]]
    one = chain([{"type": "logit_bias", "bias": bias}, {"type": "dist"}], n_vocab=2)
    assert one.draw(np.zeros(2, np.float32)).token is None


def test_biases_and_penalties_count_behind_a_top_k_too() -> None:
    entries = [
        {"type": "top_k", "k": 3},
        {"type": "logit_bias", "bias": [[4, 1.0], [0, 5.0]]},
        {"type": "penalties", "last_n": 8, "repeat": 1.0, "freq": 1.0, "present": 0.0},
    ]
    one = chain(entries, n_vocab=6)
    for token in (3, 3, 0):
        one.accept(token)
    found = one.draw(np.arange(6, dtype=np.float32))
    assert dict(zip(found.ids.tolist(), found.logits.tolist(), strict=True)) == {5: 5.0, 4: 5.0, 3: 1.0}


@pytest.mark.parametrize("rng", ["llama.cpp", "graphml"])
def test_a_copy_goes_on_the_same_way(rng: str) -> None:
    entries = [
        {"type": "xtc", "probability": 0.5, "threshold": 0.1},
        {"type": "mirostat_v2", "tau": 3, "eta": 0.3},
    ]
    one, row = chain(entries, 5, n_vocab=50, rng=rng), np.sin(np.arange(50, dtype=np.float32))

    def some(which: Any, n: int) -> list[int]:
        found = []
        for _ in range(n):
            found.append(which.draw(row).token)
            which.accept(found[-1])
        return found

    some(one, 20)
    other = one.copy()
    assert some(one, 30) == some(other, 30)


def test_adaptive_p_learns_only_from_the_token_that_is_accepted() -> None:
    entry = {"type": "adaptive_p", "target": 0.3, "decay": 0.5}
    row = np.array([2, 1, 0, 0], np.float32)
    one, other = (chain([entry], 1, n_vocab=4) for _ in range(2))
    first = one.draw(row).token
    assert first is not None
    other.draw(row)
    one.accept(first)
    other.accept((first + 1) % 4)
    assert (one.draw(row).logits != other.draw(row).logits).any()


@looped(
    ("given", "wanted"),
    [
        ([{"type": "topk"}], r"^entries\[0\]: wanted a type of .*got 'topk'\. Did you mean 'top_k'"),
        ([{"k": 4}], r"^entries\[0\]: type: wanted"),
        ([{"type": "top_k", "k": "4"}], r"^entries\[0\]: top_k: k: wanted a number.*got '4'"),
        ([{"type": "top_p", "p": math.nan}], r"top_p: p: wanted a number, got NaN"),
        ([{"type": "dist"}, {"type": "top_k", "n": 4}], r"^entries\[1\]: top_k: wanted .*of k; got 'n'"),
        ([{"type": "dist", "seed": 4}], r"dist: wanted parameters of none; got 'seed'"),
        ([{"type": "logit_bias", "bias": [3]}], r"logit_bias: bias: wanted pairs"),
        ([{"type": "logit_bias", "bias": [[1, "inf"]]}], r"logit_bias: bias: wanted numbers below infinity"),
        ([{"type": "infill"}], r"^entries\[0\]: infill: wanted vocab"),
        ([{"type": "dry", "multiplier": 1, "last_n": 9, "breakers": ["a"]}], r"dry: wanted vocab"),
        ([{"type": "grammar", "grammar": "root ::= 'a'"}], r"grammar: wanted vocab"),
        (["top_k"], r"^entries\[0\]: wanted a mapping"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named(given: Any, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        chain(given, n_vocab=8)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match=r"^rng: wanted graphml or llama\.cpp; got 'c'"):
        chain([], n_vocab=8, rng="c")
    with pytest.raises(UsageError, match=r"^n_vocab: "):
        chain([], n_vocab=0)
    with pytest.raises(UsageError, match=r"^seed: "):
        chain([], -1, n_vocab=8)
    with pytest.raises(UsageError, match=r"^logits: wanted float32 \[8\], got float64 \[4\]"):
        chain([], n_vocab=8).draw(np.zeros(4))
    with pytest.raises(UsageError, match="NaN"):
        chain([], n_vocab=2).draw(np.array([0, math.nan], np.float32))


def test_texts_come_from_the_vocabulary() -> None:
    entries = [
        {"type": "dry", "multiplier": 1, "base": 2, "allowed_length": 2, "last_n": 64, "breakers": ["\n"]},
        {"type": "banned_strings", "strings": ["ab"]},
    ]
    one = chain(entries, n_vocab=PAIRS.n_vocab, vocab=PAIRS)
    for token in PAIRS.encode("x\nya\nya"[::-1]) + PAIRS.encode("xyzxy") + PAIRS.encode("a"):
        one.accept(token)
    found = one.draw(np.zeros(PAIRS.n_vocab, np.float32)).logits
    assert found[PAIRS.encode("b")[0]] == -math.inf
    assert found[PAIRS.texts.index("ab")] == -math.inf


@pytest.mark.filterwarnings("error")
@looped(
    "entry",
    [
        {"type": "dry", "multiplier": 1.0, "allowed_length": -1, "last_n": 8, "breaker_ids": []},
        {"type": "temp_ext", "temp": 1.0, "delta": 1.0, "exponent": -1.0},
        {"type": "temp_ext", "temp": 0.0, "delta": 1.0, "exponent": 100.0},
        {"type": "temp", "temp": 1e-40},
        {"type": "penalties", "last_n": 8, "repeat": -1.0},
    ],
    ids=["no history", "no entropy", "colder than float32", "cold", "forbidden tokens stay so"],
)
@looped("scale", [1.0, 1000.0])
def test_values_at_the_ends_of_what_numbers_hold_leave_the_highest_logit(
    entry: dict[str, Any], scale: float
) -> None:
    row = np.array([-math.inf, 0.0, 2.0, 1.0], np.float32) * np.float32(scale)
    row[0] = -math.inf
    drawn = chain([entry, {"type": "greedy"}], n_vocab=4)
    if entry["type"] == "penalties":
        drawn.accept(0)
    left = drawn.draw(row)
    assert left.token == 2 or entry.get("exponent") == -1.0
    assert left.logits[list(left.ids).index(0)] == -math.inf
    assert not np.isnan(left.logits).any()


@pytest.mark.parametrize(
    ("entry", "waits"),
    [
        ({"type": "mirostat", "tau": 2, "eta": 3}, False),
        ({"type": "mirostat_v2", "tau": 2, "eta": 3}, False),
        ({"type": "adaptive_p", "target": 0.4, "decay": 0.5}, True),
    ],
)
def test_a_state_moves_when_a_token_is_sampled_or_when_it_is_accepted(
    entry: dict[str, Any], waits: bool
) -> None:
    """As in llama.cpp: of adaptive-p alone another token that is accepted leaves the state as it was."""
    row = np.random.default_rng(4).standard_normal(40).astype(np.float32) * 2
    once, fresh = chain([entry], 3, n_vocab=40), chain([entry], 3, n_vocab=40)
    first = once.draw(row)
    fresh.draw(row)
    assert first.token is not None
    once.accept((first.token + 1) % 40)
    fresh.accept(first.token)
    again, moved = once.draw(row), fresh.draw(row)
    if waits:
        assert again.logits.tolist() == first.logits.tolist() != moved.logits.tolist()
    else:
        assert again.ids.tolist() == moved.ids.tolist() != first.ids.tolist()
