"""What is true of the matchers of every kind of structure, at random places of random texts.

Texts are checked by what Python itself says of them: `re`, `json`, lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml import SamplingParams
from graphml.errors import UsageError
from graphml.sampling.settings.grammar_triggers import Trigger
from graphml.sampling.settings.reasoning_end import ReasoningEnd
from graphml.sampling.structured import Matcher
from graphml.sampling.structured.params_structure import compiled_structure, matcher_of
from graphml.sampling.structured.reasoning_matcher import ReasoningMatcher
from tests.structured.words import END, PIECES, WORDS


class Vocabulary:
    """The words as a tokenizer, as far as matchers ask."""

    n_vocab, eos, eot, end_tokens = len(PIECES), END, None, frozenset([END])

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return [PIECES.index(bytes([byte])) for byte in text.encode()]

    def piece_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def is_special(self, token: int) -> bool:
        return token == END


VOCABULARY = Vocabulary()


class Kind(NamedTuple):
    """fields: of SamplingParams. is_whole: whether a text follows it to the end."""

    fields: dict[str, Any]
    is_whole: Callable[[bytes], bool]


def by_re(pattern: bytes) -> Callable[[bytes], bool]:
    return lambda text: re.fullmatch(pattern, text, re.DOTALL) is not None


def is_object(text: bytes) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if not isinstance(value, dict) or not set(value) <= {"a", "ab"} or "a" not in value:
        return False
    return type(value["a"]) is int and value.get("ab", True) in (True, "aé")


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 12}, "ab": {"enum": [True, "aé"]}},
    "required": ["a"],
}
CHOICES = ("abc", "ab", "true", "aé")
KINDS: dict[str, Kind] = {
    "grammar": Kind(
        {"grammar": 'root ::= ("a" | "ab" | [0-9é]){2,4} "\\n"?'}, by_re(b"(a|ab|[0-9]|\xc3\xa9){2,4}\n?")
    ),
    "regex": Kind({"regex": "(ab?c|[12]{2,3})+"}, by_re(b"(ab?c|[12]{2,3})+")),
    "choices": Kind({"choices": CHOICES}, lambda text: text.decode() in CHOICES),
    "lark": Kind({"lark": 'start: "ab" /[0-9]+/ | "true"'}, by_re(b"ab[0-9]+|true")),
    "lark in grammar": Kind({"grammar": '%llguidance {}\nstart: "ab" /[12]/'}, by_re(b"ab[12]")),
    "json_schema": Kind({"json_schema": json.dumps(SCHEMA)}, is_object),
    "begins_with": Kind({"begins_with": "abcaé"}, lambda text: text.startswith("abcaé".encode())),
    "after": Kind(
        {"regex": "[12]{2}", "grammar_after": "ab"}, by_re(b"(?:(?!ab).)*abc?[12]{2}")
    ),
    "lazy": Kind(
        {
            "grammar": 'root ::= "ab" [12]{2}', "grammar_lazy": True,
            "grammar_triggers": (Trigger("pattern", "ab"),),
        },
        by_re(b"(?:(?!ab).)*(ab[12]{2})?"),
    ),
}  # fmt: skip
kinds = pytest.mark.parametrize("name", KINDS)


def matcher(name: str) -> Matcher:
    created = matcher_of(SamplingParams(rng="llama.cpp", **KINDS[name].fields), VOCABULARY)
    assert created is not None
    return created


def usable(mask: Any) -> list[int]:
    return [token for token in np.flatnonzero(mask).tolist() if token != END and PIECES[token]]


def walked(name: str, rng: Any, most: int = 14) -> tuple[Matcher, list[int], bool]:
    """A matcher behind random tokens that it allows, the tokens, and whether it ended."""
    current, tokens = matcher(name), list[int]()
    for _ in range(most):
        if current.may_end() and rng.random() < 0.2:
            return current, tokens, True
        allowed = usable(current.mask())
        if not allowed:
            return current, tokens, current.may_end()
        token = int(rng.choice(allowed))
        if (
            name in ("lazy", "after") and rng.random() < 0.5 and PIECES.index(b"ab") in allowed
        ):  # else it never begins
            token = PIECES.index(b"ab")
        try:
            current.accept(token)
        except UsageError:
            assert name == "lazy"  # a trigger behind which the token has what does not follow
            return current, tokens, False
        tokens.append(token)
    return current, tokens, False


@kinds
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_masks_say_what_is_allowed(name: str, seed: int) -> None:
    current, tokens, _ = walked(name, np.random.default_rng(seed))
    mask = current.mask()
    fresh = matcher(name)
    fresh.catch_up(tokens, len(tokens))
    one_by_one = [fresh.allows(token) for token in range(current.n)]  # without a mask
    forced = int(mask.sum()) == 1  # of forced text llguidance's masks have the one token that begins it
    for token in range(current.n):
        if PIECES[token] and 0 not in PIECES[token] and name != "lazy":
            assert one_by_one[token] if mask[token] else forced or not one_by_one[token], (tokens, token)
    assert bool(mask[END]) is current.may_end()
    assert current.allowed(range(current.n)).tolist() == mask.tolist()
    assert current.allowed([END]).tolist() == [current.may_end()]
    row = np.random.default_rng(seed).standard_normal(current.n + 3).astype(np.float32)
    masked = current.masked(row).row
    assert masked is not None
    if current.needed_bits() is not None:
        padded = np.concatenate([mask, [False] * 3])
        assert masked.tolist() == np.where(padded, row, -np.inf).tolist()
    else:
        assert masked.tolist() == row.tolist()


@kinds
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_ends_follows_the_structure(name: str, seed: int) -> None:
    current, tokens, ended = walked(name, np.random.default_rng(seed), 40)
    text = b"".join(PIECES[token] for token in tokens)
    assert current.accepted == tokens
    if ended:
        current.accept(END)
        assert KINDS[name].is_whole(text), text
    elif name not in ("lazy", "begins_with"):
        assert current.may_end() is KINDS[name].is_whole(text), text


@kinds
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), back=st.integers(0, 14))
def test_rewinds_and_copies_are_where_they_were(name: str, seed: int, back: int) -> None:
    rng = np.random.default_rng(seed)
    current, tokens, _ = walked(name, rng)
    n = min(back, len(tokens))
    copied = current.copy()
    before = current.mask().tolist()
    copied.rewind(n)
    again = matcher(name)
    again.catch_up([5, *tokens[: len(tokens) - n]], len(tokens) - n)
    assert copied.mask().tolist() == again.mask().tolist()
    assert copied.may_end() is again.may_end()
    assert copied.accepted == tokens[: len(tokens) - n]
    assert current.mask().tolist() == before
    assert current.accepted == tokens
    copied.catch_up(tokens, len(tokens))
    assert copied.mask().tolist() == before
    for wrong in (-1, len(tokens) + 1):
        with pytest.raises(UsageError, match=rf"n: 0 to {len(tokens)} tokens"):
            current.rewind(wrong)


@kinds
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_is_not_allowed_is_refused_and_changes_nothing(name: str, seed: int) -> None:
    current, tokens, _ = walked(name, np.random.default_rng(seed))
    before = current.mask()
    refused = [token for token in range(1, current.n) if not before[token] and PIECES[token]]
    for token in refused[:: max(1, len(refused) // 5)]:
        with pytest.raises(UsageError, match=r"is not possible|does not follow|cannot begin"):
            current.accept(token)
    if not current.may_end():
        with pytest.raises(UsageError, match="not possible"):
            current.accept(END)
    assert current.accepted == tokens
    assert current.mask().tolist() == before.tolist()
    assert not current.allows(current.n)
    assert not current.allows(-1)
    for ids in ([current.n], [-1]):
        if current.needed_bits() is not None:
            with pytest.raises(UsageError, match=f"token ids from 0 to {current.n - 1}"):
                current.allowed(ids)


@kinds
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), most=st.integers(0, 5))
def test_forced_tokens_are_the_only_ones(name: str, seed: int, most: int) -> None:
    current, tokens, _ = walked(name, np.random.default_rng(seed))
    trial = current.copy()
    forced = current.forced(most)
    assert len(forced) <= most
    assert current.accepted == [*tokens, *forced]
    for token in forced:
        first = PIECES[token][0]
        assert all(PIECES[other][0] == first for other in usable(trial.mask()))
        assert not trial.may_end()
        trial.accept(token)
    assert trial.mask().tolist() == current.mask().tolist()


@settings(max_examples=100, deadline=None)
@given(text=st.text("abcé", min_size=1, max_size=8), seed=st.integers(0, 10**6))
def test_a_begin_is_spelled_in_any_tokens(text: str, seed: int) -> None:
    wanted, rng = text.encode(), np.random.default_rng(seed)
    place = compiled_structure("begins_with", text, WORDS).begin()
    spelled, behind = b"", [place.copy()]
    while len(spelled) < len(wanted):
        assert not place.may_end()
        rest = wanted[len(spelled) :]
        fits = [
            token
            for token, piece in enumerate(PIECES)
            if token != END and piece and (rest.startswith(piece) or piece.startswith(rest))
        ]
        assert usable(np.unpackbits(place.bits(), bitorder="little")[: WORDS.n]) == fits
        token = int(rng.choice(fits))
        place.accept(token)
        spelled += PIECES[token]
        behind.append(place.copy())
    assert place.may_end()
    assert all(map(place.allows, range(1, WORDS.n)))
    n = int(rng.integers(0, len(behind)))
    place.rewind(n)
    assert place.bits().tolist() == behind[len(behind) - 1 - n].bits().tolist()


def test_a_budget_of_reasoning_needs_its_marks() -> None:
    with pytest.raises(UsageError, match="reasoning_budget: wanted a conversation"):
        matcher_of(SamplingParams(reasoning_budget=3), VOCABULARY)
    with pytest.raises(UsageError, match="reasoning_budget: wanted a model with a tokenizer"):
        matcher_of(SamplingParams(reasoning_budget=3), None)
    marks = ReasoningEnd("<think>", "</think>", False, (PIECES.index(b"</think>"),), (), (), False)
    for fields in ({}, {"regex": "[12]"}):
        params = SamplingParams(reasoning_budget=0, reasoning_end=marks, **fields)
        assert isinstance(matcher_of(params, VOCABULARY), ReasoningMatcher)
    assert not isinstance(matcher_of(SamplingParams(regex="[12]"), VOCABULARY), ReasoningMatcher)
    assert matcher_of(SamplingParams(), VOCABULARY) is None
