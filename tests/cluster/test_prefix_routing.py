"""Requests with a common beginning share an engine, while it is not much busier than the others."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from graphml.cluster import prefix_routing
from graphml.cluster.beginnings import Beginning
from graphml.cluster.prefix_routing import BLOCK, SLACK, SPREAD, PrefixRouter

A, B = "a" * 4 * BLOCK, "b" * 4 * BLOCK


def test_an_engine_that_has_read_a_beginning_is_chosen_again() -> None:
    router, loads = PrefixRouter(), {"x": 0, "y": 0, "z": 0}
    first = router.choose(A + "1", loads)
    other = router.choose(B + "1", {**loads, first: 1})
    assert other != first
    assert router.choose(A + "2" * BLOCK, loads) == first
    assert router.choose(B + "2" * BLOCK, loads) == other
    # Of two that have read a part, the one that has read more.
    assert router.choose(B + "2" * BLOCK, {**loads, other: 1}) == other
    router.forget(first)
    assert router.choose(A, {**loads, first: 1}) != first


def test_engines_take_turns_where_nothing_else_decides() -> None:
    router = PrefixRouter()
    assert sorted(router.choose(f"short {i}", {"x": 0, "y": 0}) for i in range(6)) == ["x"] * 3 + ["y"] * 3


def test_equal_blocks_behind_other_ones_do_not_count() -> None:
    router, loads = PrefixRouter(), {"x": 0, "y": 0}
    first = router.choose(A, loads)
    assert router.choose(B + A, {**loads, first: 1}) != first


def test_no_engine_is_left_out_or_drowned() -> None:
    """All requests begin in the same way, and still each engine has about its part of them."""
    router, loads = PrefixRouter(), dict.fromkeys("wxyz", 0)
    numbers = random.Random(5)
    total = dict.fromkeys(loads, 0)
    running: list[str] = []
    for i in range(2000):
        name = router.choose(A + str(i), loads)
        assert loads[name] <= min(loads.values()) + max(SLACK, SPREAD * sum(loads.values()) / 4)
        loads[name] += 1
        total[name] += 1
        running.append(name)
        while len(running) > 32:
            loads[running.pop(numbers.randrange(len(running)))] -= 1
    assert min(total.values()) > 300


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_routing, "MOST_KNOWN", 10)
    router = PrefixRouter()
    for i in range(50):
        router.choose(f"{i:04}" * BLOCK, {"x": 0})
    assert len(router._readers) == 10


def text_of(**body: Any) -> str:
    return Beginning.of(json.dumps(body).encode()).text


def test_the_beginning_of_a_request_is_its_tools_then_its_messages_or_prompt() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert text_of(messages=messages, tools=[1], model="m").startswith('[1]\n[{"role": "user"')
    assert text_of(prompt="Once", temperature=0) == text_of(prompt="Once", seed=2) != text_of(prompt="Two")
    assert text_of(prompt=[1, 2, 3]) == "[1, 2, 3]"
    assert text_of(content="a text that llama.cpp's endpoint embeds") != ""
    assert text_of() == Beginning.of(b"[1").text == Beginning.of(b"[]").text == ""
    assert len(text_of(prompt="x" * 10_000_000)) == BLOCK * prefix_routing.MOST_BLOCKS
    assert Beginning.of(b'{"n": 3, "previous_response_id": "r"}').n == 3
