"""A question that is given to `respond` or `stream`: after an error the conversation is as before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from tests import tiny_model


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[graphml.Chat]:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "reference") as model:
        chat = model.chat(max_tokens=2)
        chat.respond("hello")
        yield chat


def test_a_wrong_setting_adds_no_message(chat: graphml.Chat) -> None:
    before = chat.history
    with pytest.raises(graphml.UsageError, match="seed"):
        chat.respond("hi", seed="x")
    with pytest.raises(graphml.UsageError, match="text"):
        chat.respond(3)  # type: ignore[arg-type]
    assert chat.history == before


def test_a_stream_that_nobody_reads_adds_no_message(chat: graphml.Chat) -> None:
    before = chat.history
    unread = chat.stream("hi")
    assert chat.history == before
    del unread
    assert chat.respond("hi") is not None
    assert [message["content"] for message in chat.history if message["role"] == "user"] == ["hello", "hi"]


def test_without_a_question_the_last_one_is_wanted(chat: graphml.Chat) -> None:
    with pytest.raises(graphml.UsageError, match="wanted a message to answer"):
        chat.respond()
