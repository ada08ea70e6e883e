"""What Continue and Open WebUI send, by their sources: models, chats, completions at a cursor, embeddings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running_server import Running

NO_KEYS = ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer undefined", "api-key": ""})
"""What clients send where no key is set."""
PARTS = [{"type": "text", "text": "Once upon a time"}]
SAMPLED = {"temperature": 0.01, "max_tokens": 6, "stop": ["<|endoftext|>", "\n\n", "```"]}
TASK = '### Task:\nGenerate a concise title. Output: JSON format: { "title": "..." }\n<chat_history>USER: Hi'
CURSOR = ("def add(a", "b):\n")


@pytest.mark.parametrize("headers", NO_KEYS, ids=["none", "empty", "undefined"])
def test_models_are_listed_without_a_key(server: Running, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/models"):
        found = server.http.get(path, headers=headers)
        assert found.status_code == 200
        assert [one["id"] for one in found.json()["data"]] == ["stories"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": PARTS}], "model": "stories", **SAMPLED, "top_p": None},
        {"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Once"},
                      {"role": "assistant", "content": " "}, {"role": "user", "content": " "}],
         "model": "AUTODETECT", "max_tokens": 6, "frequency_penalty": 0, "presence_penalty": 0},
        {"messages": [{"role": "user", "content": "Once", "images": None, "id": "5f", "timestamp": 17}],
         "model": "stories", "stream_options": {"include_usage": True}, "max_tokens": 6, "session_id": "a",
         "chat_id": "b", "features": {"web_search": False}, "variables": {"{{USER_NAME}}": "A"},
         "params": {}, "tool_ids": None, "metadata": {"task": None}},
    ],
    ids=["Continue", "an edit of Continue", "Open WebUI"],
)  # fmt: skip
def test_their_chats_are_streamed(server: Running, body: dict[str, Any]) -> None:
    for headers in NO_KEYS:
        asked = {**body, "stream": True}
        with server.http.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        assert len(lines) > 3


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_title_is_a_request_of_its_own(server: Running, limit: str) -> None:
    body = {"model": "stories", "messages": [{"role": "user", "content": TASK}], "stream": False, limit: 9,
            "metadata": {"task": "title_generation", "chat_id": "b"}}  # fmt: skip
    answer = server.post("/v1/chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 9


def test_texts_of_a_code_base_are_embedded(server: Running) -> None:
    found = server.post("/v1/embeddings", {"model": "stories", "input": ["def f():", "class A:"]}).json()
    assert [len(one["embedding"]) for one in found["data"]] == [64, 64]


def test_a_cursor_is_completed_by_each_way(coder: Running) -> None:
    """By a template of the client's, whose control tokens are read as such; by a suffix; by /infill."""
    prefix, suffix = CURSOR
    raw = f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
    same = {"temperature": 0, "stop": SAMPLED["stop"]}
    completion = coder.events("/completion", {"prompt": raw, "n_predict": 6, **same})
    texts = ["".join(one["content"] for one in completion)]
    for body in ({"prompt": raw}, {"prompt": prefix, "suffix": suffix}):
        events = coder.events("/v1/completions", {"model": "m", **body, "max_tokens": 6, **same})
        texts.append("".join(one["choices"][0]["text"] for one in events))
    infill = {"input_prefix": prefix, "input_suffix": suffix, "input_extra": [], "n_predict": 6, **same}
    texts.append("".join(one["content"] for one in coder.events("/infill", infill)))
    assert texts[0]
    assert texts == texts[:1] * 4
