"""Prompts that `echo` repeats: streams without tokens, and places of tokens that are parts of characters."""

from __future__ import annotations

from typing import Any

import pytest

from graphml.server.protocols.openai_completions import EchoedPrompt
from graphml.server.protocols.shown_logprobs import in_lists
from tests.server.running_server import Running

ASKED: dict[str, Any] = {"prompt": "Zoë saw 東京 there", "temperature": 0, "echo": True, "logprobs": 1}


def streamed(server: Running, asked: dict[str, Any]) -> dict[int, list[Any]]:
    """The parts of each answer."""
    found: dict[int, list[Any]] = {}
    for one in server.events("/v1/completions", asked):
        for choice in one["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return found


def joined(parts: list[Any], name: str) -> list[Any]:
    return [one for part in parts for one in (part["logprobs"] or {}).get(name, ())]


def test_offsets_count_characters_of_which_tokens_are_parts() -> None:
    pieces = [b"a", b"\xc3", b"\xa9", "b東".encode(), b"\xff", b"c"]
    assert in_lists([None] * 6, pieces, 3)["text_offset"] == [3, 4, 4, 5, 7, 8]


def test_places_of_tokens_are_those_in_an_echoed_text(server: Running) -> None:
    whole = server.post("/v1/completions", {**ASKED, "max_tokens": 8}).json()["choices"][0]
    text, scores = whole["text"], whole["logprobs"]
    assert text.startswith("Zoë saw 東京 there")
    found = list(zip(scores["tokens"], scores["text_offset"], strict=True))
    assert any("\ufffd" in token for token, _ in found)
    assert all(text.startswith(token, at) for token, at in found if "\ufffd" not in token)
    parts = streamed(server, {**ASKED, "max_tokens": 8})[0]
    assert "".join(one["text"] for one in parts) == text
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert joined(parts, name) == scores[name]


@pytest.mark.parametrize("more", [{}, {"n": 2, "prompt": ["Once", "Zoë"]}], ids=["one", "several"])
def test_a_prompt_is_echoed_where_no_token_follows(server: Running, more: dict[str, Any]) -> None:
    asked = {**ASKED, "max_tokens": 0, **more}
    wanted = server.post("/v1/completions", asked).json()["choices"]
    found = streamed(server, asked)
    assert len(found) == len(wanted)
    for one in wanted:
        parts = found[one["index"]]
        assert "".join(part["text"] for part in parts) == one["text"] != ""
        assert joined(parts, "token_logprobs") == one["logprobs"]["token_logprobs"] != []


def test_scores_that_were_not_computed_are_null(server: Running) -> None:
    tokenizer = server.service.tokenizer
    prompt = EchoedPrompt(tokenizer, tokenizer.encode("Once upon a time"), "Once upon a time", 0)
    assert prompt.scores([]) == []
    assert prompt.scores([None]) == [None] * len(prompt.pieces)


def test_an_end_token_behind_an_echoed_prompt_has_an_entry(server: Running) -> None:
    """lm-evaluation-harness asks for one token behind a text, and leaves the last entry out."""
    asked = {"prompt": "Once upon a time", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    usual = server.post("/v1/completions", asked).json()["choices"][0]["logprobs"]
    (choice,) = server.post("/v1/completions", {**asked, "logit_bias": {"2": 100}}).json()["choices"]
    assert (choice["finish_reason"], choice["text"]) == ("stop", "Once upon a time")
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert choice["logprobs"][name][:-1] == usual[name][:-1], name
        assert len(choice["logprobs"][name]) == len(usual[name])
    assert choice["logprobs"]["token_logprobs"][-1] is None
