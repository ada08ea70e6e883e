"""Masks over tokens: exactly those whose bytes the grammar takes; tokens as elements of a grammar."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.sampling import grammar
from tests.looped import looped
from tests.structured.words import END, PIECES, WORDS, by_bytes

_LEAVES = st.sampled_from(
    ['"a"', '"ab"', "[ab]", '[^a"]', ".", '"é"', "[あ-ん]", '"1,"', "[\\n]", '"😀"', "x", "y", "<[3]>"]
)
_ELEMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(
            "{}{}".format, inner.filter(lambda one: " " not in one), st.sampled_from(["?", "*", "{0,2}"])
        ),
        st.builds("({} {})".format, inner, inner),
        st.builds("({} | {})".format, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(root=_ELEMENTS, x=_ELEMENTS, y=_ELEMENTS, picks=st.lists(st.integers(0, 10_000), max_size=4))
def test_a_mask_allows_a_token_exactly_if_its_bytes_are_taken(
    root: str, x: str, y: str, picks: list[int]
) -> None:
    try:
        matcher = grammar(f"root ::= {root}\nx ::= {x}\ny ::= {y}", vocab=WORDS)
    except UsageError:
        return  # x and y may refer to each other in circles
    for pick in picks:
        mask = matcher.mask()
        for token, piece in enumerate(PIECES):
            if token == END:
                assert mask[token] == matcher.may_end()
                continue
            assert mask[token] == matcher.allows(token), piece
            if "<[3]>" not in root + x + y:
                assert mask[token] == bool(piece and 0 not in piece and by_bytes(matcher, piece)), piece
        np.testing.assert_array_equal(matcher.allowed(range(len(PIECES))), mask)
        possible = [one for one in np.flatnonzero(mask).tolist() if one != END]
        if not possible:
            return
        chosen = possible[pick % len(possible)]
        before, whole = matcher.copy(), by_bytes(matcher, PIECES[chosen])
        matcher.accept(chosen)
        if whole is not None and "<[" not in root + x + y:
            np.testing.assert_array_equal(
                matcher.mask(), whole.mask()
            )  # the same place, however one came there
        back = matcher.copy()
        back.rewind(1)
        np.testing.assert_array_equal(back.mask(), before.mask())


_WRITTEN = st.recursive(
    st.sampled_from([('"a"', "a"), ("[b-d]", "c"), ('"é😀"', "é😀"), (".", "\n"), ("[^x]", "あ")]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: (f"({two[0][0]} {two[1][0]})", two[0][1] + two[1][1])),
        st.tuples(inner, inner).map(lambda two: (f"({two[0][0]} | {two[1][0]})", two[1][1])),
        st.tuples(inner, st.integers(0, 4)).map(lambda two: (f"({two[0][0]})*", two[0][1] * two[1])),
        st.tuples(inner, st.integers(1, 4)).map(
            lambda two: (f"({two[0][0]}){{1,{two[1]}}}", two[0][1] * two[1])
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(_WRITTEN)
def test_a_text_that_was_made_from_a_grammar_is_taken(made: tuple[str, str]) -> None:
    written, text = made
    if "*)" in written:
        return  # a repetition of what may be empty, which llama.cpp refuses as left recursion in some forms
    assert grammar(f"root ::= {written}").accepts(text)


def test_tokens_as_elements() -> None:
    think, ends = PIECES.index(b"<think>"), PIECES.index(b"</think>")
    matcher = grammar('root ::= <think> (!</think>)* </think> "ab" <[3]>?', vocab=WORDS)
    assert np.flatnonzero(matcher.mask()).tolist() == [think]
    matcher.accept(think)
    allowed = set(np.flatnonzero(matcher.mask()).tolist())
    assert {ends, think, PIECES.index(b"ab")} <= allowed
    # What holds no whole character, a zero byte, nothing, or the end is no token of a text.
    halves = {
        PIECES.index("あ".encode()[:2]),
        PIECES.index(b"\x82a"),
        PIECES.index(b""),
        PIECES.index(b"a\x00"),
        END,
    }
    assert not allowed & halves
    matcher.accept(PIECES.index(b"12"))
    matcher.accept(ends)
    assert not matcher.allows(think)
    matcher.accept(PIECES.index(b"ab"))
    assert matcher.may_end()
    assert matcher.allows(3)
    matcher.accept(3)
    assert np.flatnonzero(matcher.mask()).tolist() == [END]


def test_accepting_catching_up_and_errors() -> None:
    matcher = grammar('root ::= "ab" [0-9]*', vocab=WORDS)
    a, b, ab, twelve = (PIECES.index(one) for one in (b"a", b"b", b"ab", b"12"))
    with pytest.raises(UsageError, match="not possible after 0 tokens"):
        matcher.accept(b)
    with pytest.raises(UsageError, match="not possible"):
        matcher.accept(END)
    matcher.catch_up([7, 7, a, b, twelve], 3)  # two of a prompt
    matcher.accept(END)  # which changes nothing
    assert matcher.accepted == [a, b, twelve]
    matcher.catch_up([7, a, b], 2)
    assert matcher.accepted == [a, b]
    matcher.catch_up([b, twelve, twelve], 4)  # earlier ones are forgotten
    assert matcher.accepted == [a, b, twelve, twelve]
    for wrong in (-1, 5):
        with pytest.raises(UsageError, match="0 to 4"):
            matcher.rewind(wrong)
    matcher.rewind(4)
    assert matcher.allowed([a, b, ab]).tolist() == [True, False, True]
    with pytest.raises(UsageError, match="ids"):
        matcher.allowed([len(PIECES)])


@looped("patterns", [["<(a)"], ["x", "a"], ["^.*<a$"], []])
def test_a_lazy_grammar_begins_at_its_trigger(patterns: list[str]) -> None:
    tokens = [] if patterns else [PIECES.index(b"a")]
    starts = "<a" if patterns == ["^.*<a$"] else "a"
    start = "y<a" if patterns == ["^.*<a$"] else starts
    matcher = grammar(
        f'root ::= "{start}" [0-9]+', vocab=WORDS, lazy=True, trigger_patterns=patterns, trigger_tokens=tokens
    )
    assert matcher.mask().all()
    ids = [PIECES.index(bytes([one])) for one in b"y<a"]
    for token in ids[:2]:
        matcher.accept(token)
    assert matcher.may_end()
    twin = matcher.copy()
    matcher.accept(ids[2])
    assert not matcher.may_end()
    assert [one for one in b"a1}" if matcher.allows(PIECES.index(bytes([one])))] == [ord("1")]
    matcher.accept(PIECES.index(b"12"))
    matcher.rewind(1)
    assert not matcher.may_end()
    matcher.rewind(1)  # before the trigger again
    assert matcher.mask().all()
    assert twin.mask().all()
    matcher.accept(ids[2])
    assert not matcher.may_end()


def test_a_trigger_inside_a_token_and_bad_triggers() -> None:
    matcher = grammar('root ::= "a" [0-9]', vocab=WORDS, lazy=True, trigger_patterns=["a"])
    matcher.accept(PIECES.index(b'"a'))
    assert [one for one in b"a1" if matcher.allows(PIECES.index(bytes([one])))] == [ord("1")]
    for patterns in ([], ["("], ["a" * 1001]):
        with pytest.raises(UsageError, match=r"trigger|lazy"):
            grammar('root ::= "a"', lazy=True, trigger_patterns=patterns)
