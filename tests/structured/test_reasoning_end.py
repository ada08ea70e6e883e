"""A limit of reasoning: where its end is forced, whatever the tokens, and whatever counts besides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.sampling.settings.reasoning_end import ReasoningEnd
from graphml.sampling.structured import Matcher, grammar
from graphml.sampling.structured.reasoning_matcher import ReasoningMatcher
from tests.structured.words import END, PIECES, WORDS

OPEN, CLOSE = PIECES.index(b"<think>"), PIECES.index(b"</think>")
MESSAGE = tuple(WORDS.of_byte[byte] or 0 for byte in b"Stop.")
FREE = [i for i in range(len(PIECES)) if i not in (END, OPEN, CLOSE)]


def matcher(budget: int, inside: bool = True, inner: Matcher | None = None) -> ReasoningMatcher:
    end = ReasoningEnd("<think>", "</think>", inside, (*MESSAGE, CLOSE))
    return ReasoningMatcher(inner, WORDS, end, budget)


def take(limited: Matcher, text: bytes) -> None:
    for byte in text:
        limited.accept(WORDS.of_byte[byte] or 0)


def take_all(limited: Matcher, text: bytes) -> list[int]:
    """What is forced behind a text."""
    take(limited, text)
    return limited.forced(64)


def test_the_end_is_forced_behind_the_budget() -> None:
    limited = matcher(3)
    take(limited, b"abc")
    assert np.flatnonzero(limited.mask()).tolist() == [MESSAGE[0]]
    assert limited.needed_bits() is not None
    assert not limited.may_end()
    with pytest.raises(UsageError, match="reasoning_budget"):
        limited.copy().accept(CLOSE)
    assert limited.forced(2) == list(MESSAGE[:2])
    assert limited.forced(64) == [*MESSAGE[2:], CLOSE]
    assert limited.needed_bits() is None
    assert limited.may_end()
    take(limited, b"free text of any length")
    assert limited.forced(64) == []


def test_reasoning_that_ends_itself_is_left_alone() -> None:
    limited = matcher(4)
    take(limited, b"ab")
    limited.accept(CLOSE)
    take(limited, b"abcdef")
    assert limited.forced(9) == []


@pytest.mark.parametrize("spelled", [b"</think>", b"x</think>"])
def test_marks_are_found_in_any_tokens(spelled: bytes) -> None:
    limited = matcher(12)
    take(limited, spelled + b"abcdefghijkl")
    assert limited.forced(1) == []
    limited = matcher(3, inside=False)
    take(limited, b" \n<think>abc")
    assert limited.forced(1) == [MESSAGE[0]]


def test_each_part_of_reasoning_has_the_budget() -> None:
    limited = matcher(2, inside=False)
    for _ in range(2):
        take(limited, b"\n ")
        limited.accept(OPEN)
        take(limited, b"ab")
        assert limited.forced(64)[-1] == CLOSE


@pytest.mark.parametrize("inside", [False, True])
def test_a_mark_in_the_text_is_text(inside: bool) -> None:
    """As for those who read answers: behind text no reasoning begins."""
    limited = matcher(0 if not inside else 2, inside)
    limited.accept(CLOSE) if inside else take(limited, b" ")
    take(limited, b"x <think> y")
    limited.accept(OPEN)
    take(limited, b"and more")
    assert limited.forced(64) == []
    assert not limited.end_reasoning()


def test_a_frame_may_stand_before_it() -> None:
    end = ReasoningEnd("<think>", "</think>", False, (*MESSAGE, CLOSE), frame=("<a>",))
    limited = ReasoningMatcher(None, WORDS, end, 1)
    take(limited, b" <a> <think>x")
    assert limited.forced(1) == [MESSAGE[0]]


def test_channels_of_reasoning_may_follow_text() -> None:
    end = ReasoningEnd("<think>", "</think>", False, (*MESSAGE, CLOSE), anywhere=True)
    limited = ReasoningMatcher(None, WORDS, end, 1)
    take(limited, b"text<think>x")
    assert limited.forced(64)[-1] == CLOSE
    take(limited, b"text<think>x")
    assert limited.forced(1) == [MESSAGE[0]]


def test_a_budget_of_nothing_ends_it_at_once() -> None:
    assert matcher(0).forced(64)[-1] == CLOSE
    limited = matcher(0, inside=False)
    assert limited.forced(64) == []
    limited.accept(OPEN)
    assert limited.forced(64)[-1] == CLOSE


def test_a_character_is_not_cut() -> None:
    first, second, third = (WORDS.of_byte[byte] or 0 for byte in "あ".encode())
    limited = matcher(1)
    limited.accept(first)
    assert limited.forced(9) == []
    limited.accept(second)
    assert limited.forced(9) == []
    limited.accept(third)
    assert limited.forced(1) == [MESSAGE[0]]


def test_an_end_that_the_model_writes_is_waited_for() -> None:
    limited = matcher(3)
    take(limited, b"a</t")
    assert limited.forced(64) == []
    assert take_all(limited.copy(), b"hink>text") == []
    take(limited, b"x")
    assert limited.forced(1) == [MESSAGE[0]]


def test_it_is_ended_when_asked() -> None:
    limited = matcher(-1)
    take(limited, b"any length of text")
    assert limited.end_reasoning()
    assert not limited.end_reasoning()
    assert limited.forced(64) == [*MESSAGE, CLOSE]
    assert not limited.end_reasoning()
    limited.rewind(len(MESSAGE) + 4)  # the place where it was asked stays
    take(limited, b"abc")
    assert limited.forced(1) == [MESSAGE[0]]


def test_a_structure_counts_besides() -> None:
    inner = grammar('root ::= [^<]* "</think>" [0-9]+', vocab=WORDS)
    limited = matcher(2, inner=inner)
    take(limited, b"ab")
    assert limited.forced(64)[-1] == CLOSE
    assert limited.allows(WORDS.of_byte[ord("7")] or 0)
    assert not limited.allows(WORDS.of_byte[ord("x")] or 0)


def test_a_structure_that_forbids_the_end_counts_alone() -> None:
    limited = matcher(2, inner=grammar("root ::= [a-z]*", vocab=WORDS))
    take(limited, b"abcdef")
    assert limited.forced(64) == []
    assert limited.may_end()


def test_the_end_waits_for_the_structure() -> None:
    """Text that it forces is counted, and the end comes at the first place where it may."""
    spelled = dataclasses.replace(
        WORDS, encode=lambda text: [WORDS.of_byte[byte] or 0 for byte in text.encode()]
    )
    inner = grammar('root ::= "abcdefgh" [a-z.S]* "</think>"', vocab=spelled)
    end = ReasoningEnd("<think>", "</think>", True, (*MESSAGE, CLOSE))
    limited = ReasoningMatcher(inner, spelled, end, 4)
    assert limited.forced(64) == [WORDS.of_byte[byte] for byte in b"abcdefg"]
    take(limited, b"h")
    assert limited.forced(64) == [*MESSAGE, CLOSE]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_moves_do_not_change_what_follows(data: st.DataObject) -> None:
    """Any walk with tokens taken back, copies and forced tokens is as the walk without them."""
    budget, inside = data.draw(st.integers(-1, 5)), data.draw(st.booleans())
    limited = matcher(budget, inside)
    for _ in range(data.draw(st.integers(1, 25))):
        kind = data.draw(st.sampled_from(["take", "take", "take", "back", "copy", "forced"]))
        if kind == "take":
            wanted = data.draw(st.sampled_from([OPEN, CLOSE, *FREE[90:130], FREE[-1]]))
            allowed = np.flatnonzero(limited.mask())
            limited.accept(wanted if limited.allows(wanted) else int(allowed[0]))
        elif kind == "back":
            limited.rewind(data.draw(st.integers(0, len(limited.accepted))))
        elif kind == "copy":
            limited = limited.copy()
        else:
            limited.forced(data.draw(st.integers(0, 9)))
    plain = matcher(budget, inside)
    for token in limited.accepted:
        assert plain.allows(token)
        plain.accept(token)
    assert (plain.mask() == limited.mask()).all()
    assert (plain.allowed(list(range(40))) == limited.allowed(list(range(40)))).all()
    assert plain.may_end() == limited.may_end()
