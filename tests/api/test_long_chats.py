"""Chats that are longer than their context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from tests import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, backend="reference", kv="f32") as opened:
        yield opened


def test_a_conversation_longer_than_its_context(model: graphml.Model) -> None:
    """Each turn evaluates what is new alone, and the answers go on."""
    chat = model.chat(system="be brief", max_tokens=30, n_ctx=100, overflow="shift", keep=-1)
    params, n_shifts = graphml.SamplingParams(stop_tokens=()), 0
    for turn in range(8):
        chat.add_user(f"hello number {turn}")
        answer = chat.respond(params)
        assert chat.history[-1]["content"] == answer
        n_shifts += len(chat.session.shifts)
        assert chat.session.stats.n_prompt < 60
    assert n_shifts >= 3
    assert len(chat.history) == 17
    first = chat._n_first
    assert chat.session.tokens[:first] == list(chat._seen.ids[:first])
    chat.undo()
    chat.add_user("hello again")
    assert chat.respond() is not None


def test_a_conversation_that_is_rewritten_is_cut_as_a_shift_would(model: graphml.Model) -> None:
    chat = model.chat(max_tokens=10, n_ctx=100, overflow="shift")
    chat.add_user("hello")
    chat.respond()
    chat.history = [{"role": "user", "content": f"number {i} of many"} for i in range(9)]
    chat.respond()
    assert chat.session.n_past <= 100
    text = "".join(model.tokenizer.piece(token) for token in chat.session.prompt_ids)  # type: ignore[union-attr]
    assert "number 8 of many" in text
    assert "number 2" not in text
    chat.add_user("hello" * 120)
    with pytest.raises(graphml.ContextFullError, match="the message has"):
        chat.respond()


def test_a_full_context_may_be_an_error_in_a_chat(model: graphml.Model) -> None:
    chat = model.chat(max_tokens=None, n_ctx=60, overflow="error")
    chat.add_user("hello")
    with pytest.raises(graphml.ContextFullError, match="the context of 60 tokens is full"):
        chat.respond()
    assert [message["role"] for message in chat.history] == ["user"]


def test_the_first_turn_that_a_chat_keeps_is_one_that_it_has_read(model: graphml.Model) -> None:
    """Not one that was refused, nor one of a conversation that was forgotten."""
    chat = model.chat(max_tokens=8, n_ctx=96, overflow="shift", keep=-1)
    chat.add_user("a long message " * 40)
    with pytest.raises(graphml.ContextFullError):
        chat.respond()
    for turn in range(12):
        chat.add_user(f"hello {turn}")
        chat.respond()
    assert chat.session.shifts
    first = chat._n_first
    chat.reset()
    chat.add_user("a longer message than those before")
    chat.respond()
    assert chat._n_first > first
