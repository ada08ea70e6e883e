"""Each filter beside an oracle of its own in float64, on candidates in any order, forbidden ones among them.

Where rounding may decide, nothing is said. The oracles sort and loop; they share nothing with the filters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.sampling import Filter, SamplingParams
from graphml.sampling.candidates.candidates import Candidates, all_candidates, leading
from graphml.sampling.chain.filter_order import CHAIN, filters_on
from graphml.sampling.filters.penalties import penalties
from tests.sampling.words import PAIRS, moment_of

OF_NAME = {one.name: one for one in CHAIN}
NEAR = 1e-4
N_VOCAB = 60
LARGEST = float(np.finfo(np.float32).max)


class Near(Exception):  # noqa: N818 - no error of a test
    """Rounding may decide here."""


class Token(NamedTuple):
    id: int
    logit: float


@st.composite
def some_candidates(draw: st.DrawFn) -> Candidates:
    """A whole row, or a part of it in any order, or sorted; with equal and forbidden logits."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    count = draw(st.integers(1, 40))
    row = (rng.standard_normal(count) * draw(st.sampled_from([0.2, 1, 4]))).astype(np.float32)
    if draw(st.booleans()):
        row = np.round(row * 2) / np.float32(2)  # many are equal
    if draw(st.booleans()):
        row[1:][rng.random(count - 1) < 0.3] = -np.inf
    form = draw(st.sampled_from(["row", "part", "sorted"]))
    if form == "row":
        return all_candidates(row)
    ids = rng.permutation(N_VOCAB)[:count].astype(np.int32)
    if form == "part":
        order = rng.permutation(count)
        return Candidates(ids[order], row[order])
    order = leading(row, count)
    return Candidates(ids[order], row[order], is_sorted=True)


def tokens_of(candidates: Candidates) -> list[Token]:
    return [Token(int(i), float(x)) for i, x in zip(candidates.ids, candidates.logits, strict=True)]


def applied(name: str, candidates: Candidates, history: Sequence[int] = (), **fields: Any) -> list[Token]:
    """What a filter leaves; where it says that it is sorted, it is."""
    one, params = OF_NAME[name], SamplingParams(**fields)
    state, chance = fields.pop("state", None), 0.5
    moment = moment_of(one, params, history, N_VOCAB, chance)
    if state is not None:
        moment.state = state
    before = candidates.logits.copy()
    left = one.apply(params, candidates, moment)
    assert candidates.logits.tolist() == before.tolist()
    assert not left.is_sorted or bool((np.diff(left.logits[left.logits > -np.inf]) <= 0).all())
    return tokens_of(left)


def same(found: Sequence[Token], expected: Sequence[Token]) -> None:
    """The same tokens, in any order, with the same logits."""
    assert dict(found) == pytest.approx(dict(expected), rel=1e-4, abs=1e-4)
    assert len(found) == len(expected)


def chances(tokens: Sequence[Token]) -> list[float]:
    highest = max(token.logit for token in tokens)
    weights = [math.exp(token.logit - highest) for token in tokens]
    return [weight / math.fsum(weights) for weight in weights]


def likeliest(tokens: Sequence[Token], count: int) -> list[Token]:
    return sorted(tokens, key=lambda token: -token.logit)[:count]  # of equal ones those before


def away(a: float, b: float) -> None:
    if abs(a - b) < NEAR * max(1.0, abs(a)):
        raise Near


def entropy(p: Sequence[float]) -> float:
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def prefix(order: Sequence[int], p: Sequence[float], mass: float, min_keep: int, beyond: bool) -> list[int]:
    total = 0.0
    for n, i in enumerate(order, 1):
        total += p[i]
        away(total, mass)
        if n >= min_keep and (total > mass if beyond else total >= mass):
            return list(order[:n])
    return list(order)


def of_top_p(tokens: list[Token], p: float, min_keep: int) -> list[Token]:
    order = sorted(range(len(tokens)), key=lambda i: -tokens[i].logit)
    return [tokens[i] for i in prefix(order, chances(tokens), p, min_keep, beyond=False)]


def of_typical(tokens: list[Token], p: float, min_keep: int) -> list[Token]:
    shares = chances(tokens)
    surprise = [-math.log(x) if x > 0 else math.inf for x in shares]
    apart = [abs(x - entropy(shares)) for x in surprise]
    order = sorted(range(len(tokens)), key=lambda i: apart[i])
    for a, b in itertools.pairwise(order):
        if tokens[a].logit != tokens[b].logit:
            away(apart[a], apart[b])
    return [tokens[i] for i in prefix(order, shares, p, min_keep, beyond=True)]


def at_least(tokens: list[Token], values: list[float], least: float, min_keep: int) -> list[Token]:
    highest = max(values)
    for value in values:
        if value != highest or least != highest:
            away(value, least)
    kept = [token for token, value in zip(tokens, values, strict=True) if value >= least]
    return kept if len(kept) >= max(1, min_keep) else likeliest(tokens, max(1, min_keep))


def of_min_p(tokens: list[Token], p: float, min_keep: int) -> list[Token]:
    logits = [token.logit for token in tokens]
    return at_least(tokens, logits, max(logits) + math.log(p), min_keep)


def small_shares(tokens: list[Token], least: float) -> list[float]:
    """Shares of which none is so near the least that rounding decides."""
    shares = chances(tokens)
    if any(abs(share - least) < 1e-5 for share in shares):
        raise Near
    return shares


def of_epsilon(tokens: list[Token], cutoff: float, min_keep: int) -> list[Token]:
    shares = small_shares(tokens, cutoff)
    kept = [token for token, share in zip(tokens, shares, strict=True) if share >= cutoff]
    return kept if len(kept) >= max(1, min_keep) else likeliest(tokens, max(1, min_keep))


def of_eta(tokens: list[Token], cutoff: float, min_keep: int) -> list[Token]:
    bound = math.sqrt(cutoff) * math.exp(-entropy(chances(tokens)))
    return of_epsilon(tokens, min(cutoff, bound), min_keep)


def of_top_n_sigma(tokens: list[Token], n: float, _: int) -> list[Token]:
    finite = [token.logit for token in tokens if token.logit > -math.inf]
    mean = math.fsum(finite) / len(finite)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in finite) / len(finite))
    lowest = max(finite) - n * deviation
    for x in finite:
        if deviation > NEAR:
            away(x, lowest)
    if deviation <= NEAR:
        return tokens
    return [token if token.logit >= lowest else Token(token.id, -math.inf) for token in tokens]


def of_xtc(tokens: list[Token], threshold: float, min_keep: int) -> list[Token]:
    shares = small_shares(tokens, threshold)
    likely = [
        token
        for token, share in zip(tokens, shares, strict=True)
        if share >= threshold and token.logit > -math.inf
    ]
    removed = set(likeliest(likely, max(0, len(likely) - 1)))
    left = [token for token in tokens if token not in removed]
    return left if len(left) >= min_keep else tokens


def of_mirostat_v2(tokens: list[Token], mu: float, _: int) -> list[Token]:
    surprises = [-math.log2(share) if share > 0 else math.inf for share in chances(tokens)]
    for surprise in surprises:
        if surprise < math.inf:
            away(surprise, mu)
    return likeliest(tokens, max(1, sum(surprise <= mu for surprise in surprises)))


def of_mirostat(tokens: list[Token], mu: float, _: int) -> list[Token]:
    shares = sorted(chances(tokens), reverse=True)[:100]
    if len(shares) < 3 or min(shares) <= 0 or len(set(shares)) < 3:
        raise Near
    steps = [math.log((i + 2) / (i + 1)) for i in range(len(shares) - 1)]
    falls = [math.log(a / b) for a, b in itertools.pairwise(shares)]
    exponent = math.fsum(map(float.__mul__, steps, falls)) / math.fsum(step * step for step in steps)
    over = exponent - 1.0
    if abs(over) < 0.05:
        raise Near
    k = (over * 2.0**mu / (1.0 - N_VOCAB**-over)) ** (1.0 / exponent)
    if abs(k - round(k)) < 1e-3 * max(1.0, k):
        raise Near
    return likeliest(tokens, max(1, min(len(tokens), int(k))))


Oracle = Callable[[list[Token], float, int], list[Token]]
CUTS: list[tuple[str, str, tuple[float, ...], Oracle]] = [
    ("top_k", "top_k", (1, 2, 7, 39), lambda tokens, k, _: likeliest(tokens, int(k))),
    ("top_p", "top_p", (0.0, 0.3, 0.7, 0.95), of_top_p),
    ("min_p", "min_p", (0.02, 0.3, 1.0), of_min_p),
    ("typical", "typical_p", (0.2, 0.6, 0.9), of_typical),
    ("epsilon", "epsilon_cutoff", (0.01, 0.1, 0.6), of_epsilon),
    ("eta", "eta_cutoff", (0.05, 0.3, 0.9), of_eta),
    ("top_n_sigma", "top_n_sigma", (0.5, 1.0, 2.5), of_top_n_sigma),
    ("xtc", "xtc_threshold", (0.0, 0.05, 0.2), of_xtc),
]


@pytest.mark.parametrize(("name", "field", "values", "oracle"), CUTS, ids=[cut[0] for cut in CUTS])
@settings(max_examples=150, deadline=None)
@given(candidates=some_candidates(), which=st.integers(0, 3), min_keep=st.sampled_from([0, 1, 2, 6]))
def test_what_a_filter_leaves(
    name: str,
    field: str,
    values: tuple[float, ...],
    oracle: Oracle,
    candidates: Candidates,
    which: int,
    min_keep: int,
) -> None:
    value = values[which % len(values)]
    try:
        expected = oracle(tokens_of(candidates), value, min_keep)
    except Near:
        return
    fields = {field: value, "min_keep": min_keep} | ({"xtc_probability": 0.6} if name == "xtc" else {})
    same(applied(name, candidates, **fields), expected)


@pytest.mark.parametrize(("chance", "fires"), [(0.0, True), (0.25, True), (0.2501, False), (1.0, False)])
def test_xtc_removes_by_chance(chance: float, fires: bool) -> None:
    one, params = OF_NAME["xtc"], SamplingParams(xtc_probability=0.25, xtc_threshold=0.1)
    left = one.apply(params, all_candidates(np.zeros(4, np.float32)), moment_of(one, params, chance=chance))
    assert len(left) == (1 if fires else 4)


@pytest.mark.parametrize("kind", [1, 2])
@settings(max_examples=150, deadline=None)
@given(candidates=some_candidates(), tau=st.sampled_from([0.3, 1.0, 2.2, 5.0]))
def test_mirostat_keeps_what_its_surprise_allows(kind: int, candidates: Candidates, tau: float) -> None:
    oracle = of_mirostat if kind == 1 else of_mirostat_v2
    try:
        expected = oracle(tokens_of(candidates), 2 * tau, 0)
    except Near:
        return
    name = "mirostat" if kind == 1 else "mirostat_v2"
    same(applied(name, candidates, mirostat=kind, mirostat_tau=tau), expected)


@settings(max_examples=100, deadline=None)
@given(
    candidates=some_candidates(),
    at=st.integers(0, 39),
    tau=st.sampled_from([1.0, 4.0]),
    eta=st.sampled_from([0.1, 0.5]),
    mu=st.sampled_from([0.5, 3.0]),
)
def test_mirostat_moves_by_the_surprise(
    candidates: Candidates, at: int, tau: float, eta: float, mu: float
) -> None:
    tokens, params = tokens_of(candidates), SamplingParams(mirostat=2, mirostat_tau=tau, mirostat_eta=eta)
    place = at % len(tokens)
    share = chances(tokens)[place]
    if share < 1e-6:
        return
    keeps = OF_NAME["mirostat_v2"].keeps
    assert keeps is not None
    (after,) = keeps.after(params, (mu,), candidates, candidates, (place, place))
    assert after == pytest.approx(mu - eta * (-math.log2(share) - tau), abs=1e-3)


@settings(max_examples=100, deadline=None)
@given(
    candidates=some_candidates(),
    target=st.sampled_from([0.0, 0.3, 1.0]),
    decay=st.sampled_from([0.0, 0.5, 0.9]),
    at=st.integers(0, 39),
)
def test_adaptive_p_moves_its_target(candidates: Candidates, target: float, decay: float, at: int) -> None:
    tokens = tokens_of(candidates)
    fields: dict[str, Any] = {"adaptive_target": target, "adaptive_decay": decay}
    one, params = OF_NAME["adaptive_p"], SamplingParams(**fields)
    assert one.keeps is not None
    start = one.keeps.start(params)
    assert start == pytest.approx((target / (1 - decay), 1 / (1 - decay)))
    place, shares = at % len(tokens), chances(tokens)
    total, weights = one.keeps.after(params, start, candidates, candidates, (place, place))
    assert total == pytest.approx(shares[place] + decay * start[0], abs=1e-4)
    assert weights == pytest.approx(1 + decay * start[1])
    wanted = min(max(2 * target - total / weights, 0.0), 1.0)
    moment = moment_of(one, params)
    moment.state = (total, weights)
    expected = [
        Token(token.id, 5 - 10 * d * d / (1 + d) if token.logit > -math.inf else -math.inf)
        for token, share in zip(tokens, shares, strict=True)
        for d in [abs(share - wanted) / 0.3]
    ]
    same(tokens_of(one.apply(params, candidates, moment)), expected)


@settings(max_examples=200, deadline=None)
@given(
    candidates=some_candidates(),
    history=st.lists(st.integers(0, N_VOCAB - 1), max_size=30),
    last_n=st.sampled_from([-1, 0, 1, 4, 64]),
    repeat=st.sampled_from([0.5, 1.0, 1.3]),
    presence=st.sampled_from([-0.5, 0.0, 0.7]),
    frequency=st.sampled_from([-0.2, 0.0, 0.4]),
)
def test_penalties_count_the_window(
    candidates: Candidates,
    history: list[int],
    last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
) -> None:
    window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    expected = []
    for token in tokens_of(candidates):
        logit, count = token.logit, window.count(token.id)
        if count:
            logit = logit * repeat if logit <= 0 else logit / repeat
            logit -= count * frequency + presence
        expected.append(Token(token.id, logit))
    fields = {"repeat_penalty": repeat, "presence_penalty": presence, "frequency_penalty": frequency}
    same(applied("penalties", candidates, history, repeat_last_n=last_n, **fields), expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("repeat", "presence", "frequency"),
    [(1.0, 3e38, 3e38), (1.0, 3e38, 0.0), (1.0, 0.0, 3e38), (1e38, 0.0, 0.0), (1e-38, 1.0, 1.0)],
)
def test_penalties_stay_in_the_range_of_numbers(
    sign: int, repeat: float, presence: float, frequency: float
) -> None:
    """A token that was possible stays possible: logits are clipped, and -inf stays -inf."""
    row = np.array([3e38, -3e38, 2.0, -2.0, -np.inf, 0.0], np.float32)
    left = penalties(
        all_candidates(row), [0, 1, 2, 3, 4, 0], -1, repeat, sign * presence, sign * frequency
    ).logits.astype(np.float64)
    counts = [2, 1, 1, 1, 1, 0]
    presence, frequency = float(np.float32(presence)), float(np.float32(frequency))
    for i, (logit, count) in enumerate(zip(row.astype(np.float64), counts, strict=True)):
        if count and math.isfinite(logit):
            scaled = logit * np.float32(repeat) if logit <= 0 else logit / np.float32(repeat)
            taken = min(max(count * sign * frequency, -LARGEST), LARGEST)
            taken = min(max(taken + sign * presence, -LARGEST), LARGEST)
            logit = min(max(min(max(scaled, -LARGEST), LARGEST) - taken, -LARGEST), LARGEST)
        assert left[i] == pytest.approx(logit, rel=1e-5, abs=1e33 if abs(logit) > 1e30 or i < 2 else 0)


def repeated(window: Sequence[int], token: int, longest: int) -> int:
    """How long the end of the window is that it has before, followed by this token."""
    best = 0
    for i in range(1, len(window)):
        size = 0
        while window[i] == token and size < i and window[i - 1 - size] == window[-1 - size]:
            size += 1
        best = max(best, min(size, longest))
    return best


@settings(max_examples=200, deadline=None)
@given(
    candidates=some_candidates(),
    history=st.lists(st.integers(0, 4), max_size=40),
    multiplier=st.sampled_from([0.3, 1.0]),
    base=st.sampled_from([1.0, 1.75, 30.0]),
    allowed=st.sampled_from([0, 1, 2, 5]),
    last_n=st.sampled_from([-1, 3, 12, 100]),
)
def test_dry_lowers_by_the_length_of_the_repetition(
    candidates: Candidates, history: list[int], multiplier: float, base: float, allowed: int, last_n: int
) -> None:
    window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    expected = []
    for token in tokens_of(candidates):
        length = repeated(window, token.id, len(window)) if len(window) > allowed else 0
        goes_on = token.id in window[1:] and length >= allowed
        goes_on = goes_on and any(window[i] == token.id for i in range(1, len(window)))
        exponent = min(length - allowed, math.floor(88.7228391 / math.log(base)) if base > 1.000001 else 99)
        lowered = token.logit - multiplier * base**exponent if goes_on else token.logit
        expected.append(Token(token.id, max(lowered, -LARGEST) if token.logit > -math.inf else lowered))
    fields: dict[str, Any] = {"dry_sequence_breakers": (), "dry_penalty_last_n": last_n, "dry_base": base}
    fields |= {"dry_multiplier": multiplier, "dry_allowed_length": allowed}
    same(applied("dry", candidates, history, **fields), expected)


@settings(max_examples=100, deadline=None)
@given(
    candidates=some_candidates(),
    biases=st.dictionaries(
        st.integers(0, N_VOCAB - 1), st.sampled_from([-math.inf, -2.0, 0.0, 1.5, 3.4e38]), max_size=8
    ),
)
def test_biases_are_added(candidates: Candidates, biases: dict[int, float]) -> None:
    expected = [
        Token(token.id, min(token.logit + biases.get(token.id, 0.0), LARGEST))
        for token in tokens_of(candidates)
    ]
    same(applied("logit_bias", candidates, logit_bias=biases), expected)


@settings(max_examples=100, deadline=None)
@given(
    candidates=some_candidates(),
    value=st.sampled_from([0.0, 0.3, 0.7, 1.7]),
    spread=st.sampled_from([0.2, 1.0, 2.0]),
    exponent=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_temperatures_divide(candidates: Candidates, value: float, spread: float, exponent: float) -> None:
    tokens = tokens_of(candidates)
    fixed = applied("temperature", candidates, temperature=value)
    if value:
        same(fixed, [Token(token.id, token.logit / value) for token in tokens])
    else:
        assert fixed == likeliest(tokens, 1)
    fields = {"temperature": value, "dynatemp_range": spread, "dynatemp_exponent": exponent}
    moved = applied("dynamic_temperature", candidates, **fields)
    if len(tokens) == 1:
        assert moved == tokens
        return
    low, high = max(0.0, value - spread), value + spread
    divisor = low + (high - low) * (entropy(chances(tokens)) / math.log(len(tokens))) ** exponent
    if divisor > 0.01:
        same(moved, [Token(token.id, token.logit / divisor) for token in tokens])


LETTERS = "abcdefghijklmnopqrstuvwxyz"


@settings(max_examples=100, deadline=None)
@given(
    history=st.lists(st.integers(2, 40), max_size=6),
    banned=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_banned_strings_are_never_completed(history: list[int], banned: list[str]) -> None:
    text = b"".join(PAIRS.piece_bytes(token) for token in history)
    row = np.zeros(PAIRS.n_vocab, np.float32)
    found = applied("banned_strings", all_candidates(row), history, banned_strings=tuple(banned))
    for token, logit in found:
        piece = b"" if PAIRS.is_special(token) else PAIRS.piece_bytes(token)
        completes = any(
            (text + piece)[i : i + len(string)] == string.encode() and i + len(string) > len(text)
            for string in banned
            for i in range(len(text + piece))
        )
        assert (logit == -math.inf) is completes, (token, piece)


NAMES = ("top_k", "top_p", "min_p", "typ_p", "xtc", "temperature", "penalties", "dry", "top_n_sigma")
CALLED = {"typ_p": "typical"}


@settings(max_examples=100, deadline=None)
@given(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True), kind=st.integers(0, 3))
def test_samplers_run_in_the_order_that_is_asked_for(names: list[str], kind: int) -> None:
    """Biases and bans before them, Mirostat and adaptive-p behind them."""
    last: dict[str, Any] = [
        {},
        {"adaptive_target": 0.3},
        {"mirostat": 1},
        {"mirostat": 2},
    ][kind]
    params = SamplingParams(
        samplers=";".join(names), temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.5,
        xtc_probability=0.5, repeat_penalty=1.2, dry_multiplier=0.5, top_n_sigma=1.0,
        logit_bias={3: 1.0}, banned_strings=("ab",), **last,
    )  # fmt: skip
    expected = [CALLED.get(name, name) for name in names]
    if kind > 1:
        expected = [name for name in expected if OF_NAME[name].with_mirostat]
    end = ["", "adaptive_p", "mirostat", "mirostat_v2"][kind]
    on: tuple[Filter, ...] = filters_on(params, CHAIN)
    assert [one.name for one in on] == ["logit_bias", "banned_strings", *expected, *([end] if end else [])]
