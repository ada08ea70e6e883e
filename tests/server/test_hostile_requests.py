"""Requests that are wrong in ways no client means: each gets a 4xx, none a traceback."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.server.running_server import Running

USER = [{"role": "user", "content": "Hi"}]
DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def _thinking(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": content}], "max_tokens": 1}


def _variable(name: str) -> dict[str, Any]:
    return {"chat_template_kwargs": {name: 5}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/completion", {"logit_bias": [["5", 10**400]]}, "logit_bias"),
        ("/completion", {"lora": [{"id": [], "scale": 1}]}, "lora"),
        ("/completion", {"lora": [{"id": 0, "scale": 10**400}]}, "lora"),
        ("/completion", {"json_schema": DEEP}, "json_schema"),
        ("/lora-adapters", [{"id": [], "scale": 1}], "id"),
        ("/v1/messages", _thinking([{"type": "thinking", "thinking": None}]), "messages"),
        ("/v1/messages", {"messages": USER, "tool_choice": {"type": ["any"]}}, "tool_choice"),
        ("/v1/messages", {"messages": USER, "top_k": 10**30}, "top_k"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": 5}]}, "input"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input"),
        ("/v1/chat/completions", {"messages": USER, **_variable("tools")}, "chat_template_kwargs"),
        ("/apply-template", {"messages": USER, **_variable("messages")}, "chat_template_kwargs"),
    ],
    ids=lambda one: None if isinstance(one, str) else "",
)  # fmt: skip
def test_a_wrong_value_is_a_400_with_its_field(
    server: Running, caplog: pytest.LogCaptureFixture, path: str, body: Any, field: str
) -> None:
    if path == "/completion":
        body = {"prompt": "Once", "n_predict": 1, **body}
    with caplog.at_level(logging.ERROR):
        answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["message"]
    assert not caplog.records


@pytest.mark.parametrize("token", ["--5", "9" * 5000, "-", "²"], ids=["dashes", "digits", "dash", "square"])
def test_a_bias_is_of_a_text_where_it_is_no_id(server: Running, token: str) -> None:
    body = {"prompt": "Once", "n_predict": 1, "logit_bias": {token: 1}}
    assert server.post("/completion", body).status_code == 200


def test_a_path_without_end_is_refused(server: Running) -> None:
    assert server.post("/slots/" + "9" * 5000, {}).status_code == 414


@pytest.mark.parametrize("host", ["[", "[]", "[x]", ":"])
def test_a_host_that_is_no_address_is_refused(server: Running, host: str) -> None:
    assert server.http.get("/health", headers={"Host": host}).status_code == 403
