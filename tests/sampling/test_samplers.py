"""Filters against small cases computed by hand, and properties that hold for chains of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.sampling import PeekableRandom, SamplingParams, make_sampler
from graphml.sampling.candidates.candidates import all_candidates
from graphml.sampling.candidates.token_texts import Breakers, breakers_of, texts_of
from graphml.sampling.filters import adaptive_p, dry, mirostat
from tests.looped import looped
from tests.sampling.words import PAIRS, Words

TENTHS = [0.1, 0.2, 0.3, 0.4]


def logits_of(probabilities: Sequence[float]) -> Any:
    return np.log(np.asarray(probabilities, np.float32))


def kept(probabilities: Sequence[float], history: Sequence[int] = (), **fields: Any) -> dict[int, float]:
    """The tokens of a probability above 0."""
    sampler = make_sampler(SamplingParams(**{"temperature": 1.0, **fields}))
    ids, chances = sampler.distribution(logits_of(probabilities), history)
    return {int(i): float(p) for i, p in zip(ids, chances, strict=True) if p > 0}


@looped(
    ("fields", "expected"),
    [
        ({"epsilon_cutoff": 0.19}, {1: 2 / 9, 2: 3 / 9, 3: 4 / 9}),
        ({"epsilon_cutoff": 0.9}, {3: 1.0}),
        ({"epsilon_cutoff": 0.9, "min_keep": 2}, {2: 3 / 7, 3: 4 / 7}),
        # entropy 1.2799, so that the bound is sqrt(0.6) * exp(-1.2799) = 0.2154
        ({"eta_cutoff": 0.6}, {2: 3 / 7, 3: 4 / 7}),
        ({"eta_cutoff": 0.05}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.25}, {0: 1 / 6, 1: 2 / 6, 2: 3 / 6}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.05}, {0: 1.0}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.05, "min_keep": 2}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.51}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        # standard deviation of the logits 0.5196: those below 0.4 / exp(0.5196) = 0.2379 go
        ({"top_n_sigma": 1.0}, {2: 3 / 7, 3: 4 / 7}),
        ({"top_n_sigma": 2.0}, {1: 2 / 9, 2: 3 / 9, 3: 4 / 9}),
        ({"mirostat": 2, "mirostat_tau": 0.9}, {2: 3 / 7, 3: 4 / 7}),
        ({"mirostat": 2, "mirostat_tau": 0.0}, {3: 1.0}),
    ],
)
def test_what_is_left_is_what_a_hand_computes(fields: dict[str, Any], expected: dict[int, float]) -> None:
    assert kept(TENTHS, **fields) == pytest.approx(expected, abs=1e-5)


def test_xtc_fires_as_often_as_it_should() -> None:
    sampler = make_sampler(SamplingParams(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.05))
    numbers, row = PeekableRandom(1), logits_of([0.9, 0.1])
    only = sum(len(c) == 1 for _ in range(4000) for n, c in sampler.trace(row, (), numbers) if n == "xtc")
    assert only / 4000 == pytest.approx(0.3, abs=0.025)


def test_xtc_leaves_the_least_likely_token_that_is_possible() -> None:
    bias = {0: float("-inf"), 3: float("-inf")}
    assert kept(TENTHS, xtc_probability=1.0, xtc_threshold=0.0, logit_bias=bias) == {1: 1.0}


def test_xtc_leaves_a_single_candidate_alone_and_uses_no_number() -> None:
    params = SamplingParams(temperature=1.0, top_k=1, xtc_probability=1.0)
    numbers, plain = PeekableRandom(4), np.random.default_rng(4)
    make_sampler(params).sample(logits_of(TENTHS), (), numbers)
    assert [numbers.random()] == list(plain.random(2)[1:])


# --- DRY


@looped(
    ("history", "fields", "lowered"),
    [
        ([1, 2, 3, 1, 2], {}, {3: 1.0}),
        ([1, 2, 3, 1, 2], {"allowed_length": 1}, {3: 2.0}),
        ([0, 1, 2, 3, 0, 1, 2], {}, {3: 2.0}),
        ([0, 1, 2, 3, 0, 1, 2], {"allowed_length": 4}, {}),
        ([1, 2, 3, 0, 1, 2, 4, 1, 2], {}, {3: 1.0, 4: 1.0}),
        ([2, 2, 2, 2, 2], {}, {2: 4.0}),
        ([1, 2], {}, {}),
        ([], {}, {}),
        ([1, 2, 3, 1, 2], {"breakers": {3: [()]}}, {}),  # the breaker itself is never lowered
        ([0, 1, 2, 3, 0, 1, 2], {"breakers": {1: [()]}}, {}),  # one token behind it is too short
        ([0, 1, 2, 3, 0, 1, 2], {"breakers": {0: [()]}}, {3: 1.0}),
        ([5, 0, 1, 2, 3, 5, 0, 1, 2], {"breakers": {5: [(0,)]}}, {3: 1.0}),
        ([5, 0, 1, 2, 3, 5, 0, 1, 2], {"breakers": {5: [(1,)]}}, {3: 4.0}),
    ],
)
def test_dry_lowers_what_would_repeat(
    history: list[int], fields: dict[str, Any], lowered: dict[int, float]
) -> None:
    given = {"multiplier": 1.0, "base": 2.0, "allowed_length": 2, "breakers": {}, **fields}
    given["breakers"] = Breakers(given["breakers"])
    found = dry.dry(all_candidates(np.zeros(8, np.float32)), history, **given).logits
    assert {i: -float(x) for i, x in enumerate(found) if x} == lowered


def longest(history: list[int], token: int) -> int:
    """The longest end of the history that it has before, followed by the token, by trying all."""
    found = 0
    for i in range(1, len(history)):
        size = 0
        while history[i] == token and size < i and history[i - 1 - size] == history[-1 - size]:
            size += 1
        found = max(found, size)
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=40), st.sampled_from([0, 1, 128]))
def test_repetitions_are_those_that_trying_all_finds(history: list[int], rounds: int) -> None:
    with mock.patch.object(dry, "_ROUNDS", rounds):
        tokens, lengths = dry.repeats(np.array(history), len(history), 1, 100)
    found = dict(zip(tokens.tolist(), lengths.tolist(), strict=True))
    assert found == {t: n for t in range(4) if (n := longest(history, t)) > 0}


def test_the_largest_penalty_is_a_number() -> None:
    candidates = all_candidates(np.zeros(4, np.float32))
    found = dry.dry(candidates, [1] * 3000, 3.4e38, 3.4e38, 0, dry.NO_BREAKERS).logits
    assert np.isfinite(found).all()
    assert found[1] == np.finfo(np.float32).min


def nearest(history: list[int], tails: dict[int, list[tuple[int, ...]]]) -> int:
    """How many tokens are behind the nearest breaker, by trying all."""
    for at in range(len(history) - 1, -1, -1):
        fits = [
            len(tail)
            for tail in tails.get(history[at], ())
            if tuple(history[at + 1 : at + 1 + len(tail)]) == tail
        ]
        if fits:
            return len(history) - 1 - at - max(fits)
    return len(history)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.dictionaries(
        st.integers(0, 3),
        st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=3),
    ),
)
def test_the_nearest_breaker_is_that_which_trying_all_finds(
    history: list[int], tails: dict[int, list[tuple[int, ...]]]
) -> None:
    assert Breakers(tails).limit(np.array(history)) == nearest(history, tails)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=3, max_size=12, unique=True),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_spellings_of_breakers_are_those_that_trying_all_finds(texts: list[str], wanted: list[str]) -> None:
    words = Words([*"abc", *(text for text in texts if len(text) > 1)])
    spelled = {
        (i, tuple(words.encode(text[size:], add_special=False)) if size < len(text) else ())
        for text in wanted
        for i, word in enumerate(words.texts)
        for size in ([len(text)] if text in word else range(1, len(text)))
        if text in word or word.endswith(text[:size])
    }
    found = breakers_of(words, tuple(wanted)).tails
    assert {(head, tail) for head, tails in found.items() for tail in tails} == spelled


def test_breakers_are_found_in_every_spelling() -> None:
    words = Words(["a", "b", "c", "ab", "xa", "bc", "xabc", "x"])
    found = breakers_of(words, ("abc",))
    texts = {
        (words.texts[head], *(words.texts[i] for i in tail))
        for head, tails in found.tails.items()
        for tail in tails
    }
    assert texts == {("a", "bc"), ("ab", "c"), ("xa", "bc"), ("xabc",)}


def test_default_breakers_need_a_vocabulary_and_no_breakers_need_none() -> None:
    sampler = make_sampler(SamplingParams(dry_multiplier=1.0))
    with pytest.raises(UsageError, match="dry_sequence_breakers: wanted a model with a vocabulary"):
        sampler.sample(np.zeros(9, np.float32), [1, 2, 3, 1, 2], PeekableRandom(0))
    without = make_sampler(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=()))
    assert without.sample(np.eye(9, dtype=np.float32)[3] * 0.5, [1, 2, 3, 1, 2], PeekableRandom(0)) == 0


# --- Mirostat and adaptive-p: states


def surprises(probabilities: Sequence[float], n: int, **fields: Any) -> list[float]:
    sampler = make_sampler(SamplingParams(temperature=1.0, **fields))
    numbers, history, found = PeekableRandom(7), [], []
    for _ in range(n):
        history.append(sampler.sample(logits_of(probabilities), history, numbers))
        found.append(-math.log2(probabilities[history[-1]]))
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_reaches_its_target(version: int) -> None:
    zipf = 1.0 / np.arange(1, 400) ** 1.1
    found = surprises(list(zipf / zipf.sum()), 1500, mirostat=version, mirostat_tau=3.0)
    plain = surprises(list(zipf / zipf.sum()), 300)
    assert np.mean(plain) > 4.5
    # the surprise that counts is that among the tokens that are kept, which is lower
    assert 3.0 <= np.mean(found[200:]) <= 3.9


def test_mirostat_moves_mu_by_the_surprise() -> None:
    one, params = mirostat.FILTER, SamplingParams(mirostat=1, mirostat_tau=3.0, mirostat_eta=0.5)
    assert one.keeps is not None
    candidates = all_candidates(logits_of([0.25] * 4))
    assert one.keeps.start(params) == (6.0,)
    assert one.keeps.after(params, (6.0,), candidates, candidates, (0, 0)) == pytest.approx((6.5,))


def test_adaptive_p_prefers_tokens_near_to_its_target() -> None:
    found = kept([0.6, 0.3, 0.1], adaptive_target=0.3)
    assert max(found, key=lambda token: found[token]) == 1
    mean = np.mean([2**-x for x in surprises([0.6, 0.25, 0.1, 0.05], 2000, adaptive_target=0.4)])
    assert mean == pytest.approx(0.4, abs=0.05)


def test_adaptive_p_aims_at_the_other_side_of_its_mean() -> None:
    assert adaptive_p.adapted(0.5, (5.0, 10.0)) == 0.5
    assert adaptive_p.adapted(0.5, (7.0, 10.0)) == pytest.approx(0.3)
    assert adaptive_p.adapted(0.1, (9.0, 10.0)) == 0.0


# --- banned strings, own functions, infill


def test_a_banned_string_is_never_completed() -> None:
    params = SamplingParams(temperature=1.0, banned_strings=("cab", "dd"))
    sampler, row = make_sampler(params), np.zeros(PAIRS.n_vocab, np.float32)
    row[:2] = row[6:] = -np.inf  # of the letters a to d, at least
    row[[i for i, text in enumerate(PAIRS.texts) if len(text) == 2 and set(text) <= set("abcd")]] = 0.0
    for seed in range(20):
        numbers, history = PeekableRandom(seed, PAIRS), []
        for _ in range(60):
            history.append(sampler.sample(row, history, numbers))
        text = "".join(PAIRS.texts[i] for i in history)
        assert "cab" not in text
        assert "dd" not in text
        assert "ca" in text


def test_texts_of_tokens() -> None:
    texts = texts_of(PAIRS)
    words = [PAIRS.texts[i] for i in texts.that_begin_with(b"a").tolist()]
    assert sorted(words) == ["a", *("a" + b for b in "abcdefghijklmnopqrstuvwxyz")]
    assert texts.that_begin_with(b"zz").tolist() == []
    assert texts.end_of([2, 3, 4], 2) == b"bc"
    assert texts.end_of([2], 5) == b"a"
    assert texts.text(0) == b""


def test_a_function_of_ones_own_gets_ids_logits_and_history() -> None:
    seen: list[Any] = []

    def only_even(ids: Any, logits: Any, history: Sequence[int]) -> Any:
        seen.append((ids.dtype, logits.dtype, tuple(history)))
        return np.where(ids % 2 == 0, logits, -np.inf)

    assert kept(TENTHS, [5, 6], function=only_even) == pytest.approx({0: 0.25, 2: 0.75})
    assert seen == [(np.int32, np.float32, (5, 6))]


@looped(
    ("given", "wanted"),
    [
        (lambda ids, logits, history: logits[:2], r"got shape \[2\]"),
        (lambda ids, logits, history: logits * np.nan, "got nan for token 0"),
        (lambda ids, logits, history: logits + np.inf, "got inf for token 0"),
        (lambda ids, logits, history: None, "got"),
        (lambda ids, logits, history: "x", "got str"),
    ],
    ids=["shape", "nan", "inf", "none", "text"],
)
def test_a_function_that_returns_something_else_is_named(given: Any, wanted: str) -> None:
    with pytest.raises(UsageError, match=rf"^function: wanted logits.*{wanted}"):
        kept(TENTHS, function=given)


def test_infill_ends_where_an_end_is_likely_and_merges_beginnings() -> None:
    words = Words(["he", "hello", "x", "y"])
    params = SamplingParams(temperature=1.0, samplers="infill")
    sampler = make_sampler(params)

    def left(*probabilities: float) -> dict[int, float]:
        numbers = PeekableRandom(0, words)
        ids, chances = sampler.distribution(logits_of(probabilities), (), numbers)
        return dict(zip(ids.tolist(), chances.tolist(), strict=True))

    assert left(0.1, 0.1, 0.2, 0.2, 0.2, 0.2) == pytest.approx({0: 0.5, 1: 0.5})
    assert left(0.001, 0.001, 0.5, 0.4, 0.049, 0.049).keys() == {0, 1, 2}
    assert left(1e-4, 1e-4, 0.19, 0.15, 0.15, 0.1).keys() == {0, 1, 2}
    assert left(1e-9, 1e-9, 0.1, 0.02, 0.02, 0.02).keys() >= {2}


# --- all of them

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(1, 30),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(0, 1),
        "top_n_sigma": st.floats(0, 3),
        "epsilon_cutoff": st.floats(0, 1),
        "eta_cutoff": st.floats(0, 1),
        "xtc_probability": st.floats(0, 1),
        "xtc_threshold": st.floats(0, 0.6),
        "dynatemp_range": st.floats(0, 1),
        "adaptive_target": st.floats(0, 1),
        "mirostat": st.integers(0, 2),
        "min_keep": st.integers(0, 10),
    },
)
ORDER = st.permutations(
    [
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "eta",
        "epsilon",
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    fields=FIELDS,
    order=ORDER,
    rng=st.sampled_from(["graphml", "llama.cpp"]),
    logits=st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=60),
    seed=st.integers(0, 100),
)
def test_any_chain_in_any_order_leaves_a_distribution(
    fields: dict[str, Any], order: list[str], rng: str, logits: list[float], seed: int
) -> None:
    more = {"dry_multiplier": 0.5, "dry_sequence_breakers": (), "repeat_penalty": 1.2}
    params = SamplingParams(temperature=0.8, samplers=";".join(order), rng=rng, **fields, **more)
    sampler, numbers, row = make_sampler(params), PeekableRandom(seed), np.array(logits, np.float32)
    ids, chances = sampler.distribution(row, [0, 1, 0, 1], numbers)
    assert len(set(ids.tolist())) == len(ids)
    assert chances.sum() == pytest.approx(1.0)
    again = numbers.copy()
    token = sampler.sample(row, [0, 1, 0, 1], numbers)
    assert token in ids[chances > 0]
    assert sampler.sample(row, [0, 1, 0, 1], again) == token


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=60, unique=True),
    k=st.integers(1, 30),
    p=st.floats(0.001, 1),
    epsilon=st.floats(0, 0.2),
)
def test_filters_that_do_not_normalise_commute(logits: list[int], k: int, p: float, epsilon: float) -> None:
    row = np.array(logits, np.float32) / 8
    found = [
        make_sampler(SamplingParams(temperature=1.0, top_k=k, min_p=p, samplers=order)).distribution(row, ())
        for order in ("top_k;min_p", "min_p;top_k", "km", "mk")
    ]
    assert len({frozenset(ids.tolist()) for ids, _ in found}) == 1


@looped("min_keep", [1, 3, 5])
@looped(
    "fields",
    [{"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.0}, {"epsilon_cutoff": 1.0}, {"eta_cutoff": 1.0}],
    ids=lambda fields: next(iter(fields)),
)
def test_min_keep_holds(fields: dict[str, float], min_keep: int) -> None:
    assert len(kept([0.5, 0.2, 0.1, 0.1, 0.06, 0.04], min_keep=min_keep, **fields)) >= min_keep


@pytest.mark.parametrize("rng", ["graphml", "llama.cpp"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"xtc_probability": 0.5, "xtc_threshold": 0.2},
        {"top_n_sigma": 1.5},
    ],
    ids=lambda fields: next(iter(fields), "plain"),
)
def test_sampled_tokens_have_their_probabilities(rng: str, fields: dict[str, float]) -> None:
    """Chi-square of 4000 tokens; the bound is passed once in 10,000 times, and the seed is fixed."""
    params = SamplingParams(temperature=0.9, rng=rng, **fields)
    sampler, row, n = make_sampler(params), logits_of([0.3, 0.25, 0.2, 0.1, 0.1, 0.05]), 4000
    numbers, expected = PeekableRandom(11), np.zeros(6)
    ways = [(1.0, 1.0)]
    if "xtc_probability" in fields:
        ways = [(0.5, 0.0), (0.5, 1.0)]
    for share, chance in ways:
        forced = SamplingParams(
            **{**vars(params), "rng": "graphml"} | ({"xtc_probability": chance} if len(ways) > 1 else {})
        )
        ids, chances = make_sampler(forced).distribution(row, ())
        expected[ids] += share * chances
    counts = np.bincount([sampler.sample(row, (), numbers) for _ in range(n)], minlength=6)
    assert not counts[expected == 0].any()
    there = expected > 0
    chi_square = ((counts[there] - n * expected[there]) ** 2 / (n * expected[there])).sum()
    assert chi_square < 25.7


def test_names_of_an_order_are_checked() -> None:
    for order in ("top_k;temperature", "kt", "Top-K; temp", "edskypmxt", "nucleus", ""):
        assert SamplingParams(samplers=order).samplers == order
    with pytest.raises(
        UsageError, match=r"^samplers: wanted names of .*got 'top_q'\. Did you mean .*'top_k'"
    ):
        SamplingParams(samplers="top_q;temperature")
    with pytest.raises(UsageError, match=r"^samplers: wanted names of .*got 'kz'"):
        SamplingParams(samplers="kz")
    with pytest.raises(UsageError, match=r"^samplers: wanted a text"):
        SamplingParams(samplers=["top_k"])  # type: ignore[arg-type]
    steps = make_sampler(SamplingParams(temperature=0.5, top_k=3, top_p=0.5, samplers="tk")).steps
    assert [one.name for one, _ in steps] == ["temperature", "top_k"]


def test_mirostat_replaces_the_filters() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, repeat_penalty=2.0, logit_bias={1: 1.0}, mirostat=2)
    assert [one.name for one, _ in make_sampler(params).steps] == ["logit_bias", "temperature", "mirostat_v2"]
