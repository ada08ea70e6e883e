"""The stop string matcher against a search that looks at the whole text after every character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.text.stop_strings import StopMatcher


def naive(text, stops):
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], max(met, key=len)
    return text, None


@settings(max_examples=500)
@given(
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_equals_naive_search_however_the_text_is_cut(pieces, stops):
    matcher = StopMatcher(stops)
    shown, stopped = "", False
    for piece in pieces:
        emitted, stopped = matcher.push(piece)
        shown += emitted
        # never shows what the whole text does not show, never holds back more than a stop string's beginning
        assert naive("".join(pieces), stops)[0].startswith(shown)
        assert len(matcher._held) < max(map(len, stops), default=1)
    shown += matcher.flush()
    assert (shown, matcher.matched) == naive("".join(pieces), stops)
    assert stopped == (matcher.matched is not None)


def test_holds_back_the_beginning_of_a_stop():
    matcher = StopMatcher(("</s>", "User:"))
    assert matcher.push("Hello <") == ("Hello ", False)
    assert matcher.push("/b> Us") == ("</b> ", False)
    assert matcher.push("er") == ("", False)
    assert matcher.push(": next") == ("", True)
    assert matcher.matched == "User:"
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_no_stops_pass_all():
    matcher = StopMatcher(())
    assert matcher.push("abc") == ("abc", False)
    assert matcher.flush() == ""


def test_empty_stop_is_refused():
    with pytest.raises(UsageError, match="not empty"):
        StopMatcher(("a", ""))
