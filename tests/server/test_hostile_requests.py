"""Requests that are wrong in ways no client means: each gets a 4xx, none a traceback."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from graphml.server.responses.event_stream import encode
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


def _called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "\ufdd0<|im_end|>\ufdd1", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


LONE = "\\ud800"
"""A lone surrogate as JSON escapes it, within a text that is JSON."""
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _schema(**parts: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parts}}}


ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": _called(f'{{"a": "{LONE}"}}')}),
    ("/v1/chat/completions", {"messages": _called(f'{{"{LONE}": [{{"b": "{LONE}x"}}]}}'), "tools": [TOOL]}),
    ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "arguments": f'{{"{LONE}": 1}}'}]}),
    ("/v1/chat/completions", {"messages": USER, "tools": [_schema(required=None, properties=None)]}),
    ("/v1/chat/completions", {"messages": USER, "tools": [_schema(properties={"a": True, "b": None})]}),
    ("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": {"enable_thinking": []}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ANSWERED, ids=range(len(ANSWERED)))
def test_what_is_strange_and_not_wrong_is_answered(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, {**body, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x", "reasoning": {"a": 1}}]}),
    ("/v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": ["user"], "content": "x"}]}),
    ("/v1/chat/completions", {"messages": _called("[" * 3000)}),
    ("/v1/chat/completions", {"messages": USER, "tools": [{"type": 5}]}),
    ("/v1/responses", {"input": [{"type": ["message"]}]}),
    ("/v1/responses", {"input": [{"type": "mcp_call", "id": 5, "name": "f"}]}),
    ("/v1/responses", {"input": [{"type": "custom_tool_call", "call_id": "c", "name": None}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
    ("/v1/messages", {"messages": USER, "output_format": {"type": "json_schema", "schema": []}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_in_a_history_is_a_400(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, {**body, "max_tokens": 1})
    assert answer.status_code == 400, answer.text


def test_surrogates_in_a_body_and_an_answer_are_no_error(server: Running) -> None:
    for raw in (b'"\\ud800"', b'"\xed\xa0\x80"'):
        body = b'{"max_tokens": 1, "messages": [{"role": "user", "content": ' + raw + b"}]}"
        assert server.http.post("/v1/chat/completions", content=body).status_code in (200, 400)
    assert encode({"input": {"a\ud800": ["\udfff", 1]}}) == '{"input":{"a\ufffd":["\ufffd",1]}}'.encode()


def test_breakers_of_a_request_have_a_limit(server: Running) -> None:
    body = {"prompt": "Hi", "n_predict": 1, "dry_multiplier": 1.0}
    assert server.post("/completion", {**body, "dry_sequence_breakers": ["a"] * 64}).status_code == 200
    refused = server.post("/completion", {**body, "dry_sequence_breakers": [str(i) for i in range(65)]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "dry_sequence_breakers"
